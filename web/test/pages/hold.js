// Delays a worker's messages until its script has been set up.

const held = [];
self.onmessage = ({ data }) => held.push(data);
self.release = () => {
  self.onmessage = null;
  for (const data of held) self.dispatchEvent(new MessageEvent("message", { data }));
};
