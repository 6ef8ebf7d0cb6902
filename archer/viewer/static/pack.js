// Packed answers: a JSON header and little-endian arrays, cut into responses.

const TYPES = { f4: Float32Array, i4: Int32Array, u1: Uint8Array };

export function unpack(buffer) {
  const bytes = new Uint8Array(buffer);
  if (String.fromCharCode(...bytes.subarray(0, 4)) !== "ARC1") throw new Error("The answer is not a packed one.");
  const size = new DataView(buffer).getUint32(4, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
  const arrays = {};
  for (const [name, [type, offset, length]] of Object.entries(header.arrays)) {
    arrays[name] = new TYPES[type](buffer, 8 + size + offset, length);
  }
  return { header, arrays };
}

// [{row, span, mask, values: {metric: Float32Array}, failed: {metric: Uint8Array}, ids, starts, text, prompt}]
export function responsesOf(buffer) {
  const { header, arrays } = unpack(buffer);
  const decoder = new TextDecoder();
  let token = 0;
  let byte = 0;
  return header.rows.map((row, index) => {
    const end = token + header.spans[index];
    const values = {};
    for (const name of header.metrics) values[name] = arrays[`metric:${name}`].subarray(token, end);
    const response = { row, span: header.spans[index], mask: arrays.mask.subarray(token, end), values, failed: {} };
    for (const name of header.metrics) if (arrays[`failed:${name}`]) response.failed[name] = arrays[`failed:${name}`].subarray(token, end);
    if (arrays.text) {
      const textEnd = byte + header.text_bytes[index];
      response.ids = arrays.ids.subarray(token, end);
      response.starts = arrays.starts.subarray(token, end);
      response.text = decoder.decode(arrays.text.subarray(byte, textEnd));
      response.prompt = header.prompts[header.prompt_of[index]];
      byte = textEnd;
    }
    token = end;
    return response;
  });
}

export function tokenText(response, index) {
  const end = index + 1 < response.span ? response.starts[index + 1] : response.text.length;
  return response.text.slice(response.starts[index], end);
}

// The token that holds a character of the joined text.
export function tokenAt(response, character) {
  let low = 0;
  let high = response.span - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (response.starts[middle] <= character) low = middle;
    else high = middle - 1;
  }
  return low;
}
