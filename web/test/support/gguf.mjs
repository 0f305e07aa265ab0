// Splits a GGUF file, as llama.cpp's tool does: the first part has the metadata, each part some of the tensors.

const ALIGNMENT = 32;
/** Bytes of the metadata types by their numbers; 8 is a string, 9 a list. */
const BYTES = [1, 1, 2, 2, 4, 4, 4, 1, null, null, 8, 8, 8];

/** The parts of `file`, by name. */
export function split(file, stem, count) {
  const { metadata, pairs, tensors, data } = read(file);
  const each = Math.ceil(tensors.length / count);
  const parts = Array.from({ length: count }, (_, number) => {
    const own = tensors.slice(number * each, (number + 1) * each);
    return part(number, count, number === 0 ? { metadata, pairs } : { metadata: Buffer.alloc(0), pairs: 0 }, own, data);
  });
  const digits = (number) => String(number).padStart(5, "0");
  return Object.fromEntries(parts.map((bytes, at) => [`${stem}-${digits(at + 1)}-of-${digits(count)}.gguf`, bytes]));
}

function read(file) {
  let at = 24;
  const u32 = () => file.readUInt32LE((at += 4) - 4);
  const u64 = () => Number(file.readBigUInt64LE((at += 8) - 8));
  const skipText = () => {
    const length = u64();
    at += length;
  };
  const skip = (type) => {
    if (type === 8) skipText();
    else if (type === 9) for (let [of, left] = [u32(), u64()]; left > 0; left--) skip(of);
    else at += BYTES[type];
  };
  const [entries, pairs] = [8, 16].map((offset) => Number(file.readBigUInt64LE(offset)));
  const start = at;
  for (let left = pairs; left > 0; left--) {
    skipText();
    skip(u32());
  }
  const metadata = file.subarray(start, at);
  const tensors = Array.from({ length: entries }, () => {
    const from = at;
    skipText();
    const dimensions = u32();
    at += dimensions * 8 + 4;
    const info = file.subarray(from, at);
    return { info, offset: u64() };
  });
  const data = file.subarray(Math.ceil(at / ALIGNMENT) * ALIGNMENT);
  const starts = [...tensors.map(({ offset }) => offset), data.length].sort((a, b) => a - b);
  for (const tensor of tensors) tensor.end = starts.find((next) => next > tensor.offset);
  return { metadata, pairs, tensors, data };
}

function part(number, count, { metadata, pairs }, tensors, data) {
  const numbers = (...values) => Buffer.concat(values.map(([bytes, value]) => integer(bytes, value)));
  const pair = (key, value) => Buffer.concat([numbers([8, key.length]), Buffer.from(key), numbers([4, 2], [2, value])]);
  const head = [Buffer.from("GGUF"), numbers([4, 3], [8, tensors.length], [8, pairs + 2]), metadata];
  head.push(pair("split.no", number), pair("split.count", count));
  const body = [];
  let offset = 0;
  for (const tensor of tensors) {
    const bytes = padded(data.subarray(tensor.offset, tensor.end));
    head.push(tensor.info, numbers([8, offset]));
    body.push(bytes);
    offset += bytes.length;
  }
  return Buffer.concat([padded(Buffer.concat(head)), ...body]);
}

function integer(bytes, value) {
  const buffer = Buffer.alloc(bytes);
  buffer.writeUIntLE(value, 0, Math.min(bytes, 6));
  return buffer;
}

function padded(bytes) {
  return Buffer.concat([bytes, Buffer.alloc(-bytes.length & (ALIGNMENT - 1))]);
}
