// Instruments the GPU of a worker: counts buffers, and injects faults on command.

const devices = new Set();
let live = 0;

const requestDevice = GPUAdapter.prototype.requestDevice;
GPUAdapter.prototype.requestDevice = async function (...args) {
  const device = await requestDevice.apply(this, args);
  const buffers = new Set();
  devices.add(device);
  const createBuffer = device.createBuffer.bind(device);
  device.createBuffer = (descriptor) => {
    const buffer = createBuffer(descriptor);
    buffers.add(buffer);
    live++;
    const destroy = buffer.destroy.bind(buffer);
    buffer.destroy = () => {
      if (buffers.delete(buffer)) live--;
      destroy();
    };
    return buffer;
  };
  const destroy = device.destroy.bind(device);
  device.destroy = () => {
    live -= buffers.size;
    buffers.clear();
    devices.delete(device);
    destroy();
  };
  return device;
};

const channel = new BroadcastChannel("folio-test");
channel.onmessage = ({ data }) => {
  if (data === "count") channel.postMessage({ live, devices: devices.size });
  if (data === "destroy") for (const device of devices) device.destroy();
  if (data === "crash") {
    const { writeBuffer } = GPUQueue.prototype;
    GPUQueue.prototype.writeBuffer = () => {
      GPUQueue.prototype.writeBuffer = writeBuffer;
      throw new TypeError("planted");
    };
  }
};
