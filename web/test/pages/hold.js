// Holds back a worker's messages while its script is still being made up.

const held = [];
self.onmessage = ({ data }) => held.push(data);
self.release = () => {
  self.onmessage = null;
  for (const data of held) self.dispatchEvent(new MessageEvent("message", { data }));
};
