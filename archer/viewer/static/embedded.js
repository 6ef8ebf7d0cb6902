// The data inside an exported page: one group of one step, without a server.

import { ApiError } from "./failure.js";
import { responsesOf } from "./pack.js";
import { StepHead } from "./head.js";

export class EmbeddedSource {
  async read(name) {
    const text = document.getElementById(`data-${name}`).textContent;
    const packed = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  }

  async json(name) {
    return JSON.parse(new TextDecoder().decode(await this.read(name)));
  }

  // A page from a disk has no address that a worker could be loaded from but the data it carries itself.
  async searchWorker() {
    const script = new Blob([await this.read("searchworker")], { type: "text/javascript" });
    return URL.createObjectURL(script);
  }

  exportAddress() {
    return null;
  }

  library() {
    return this.json("library");
  }

  // A file that was sent around holds one group: no metrics, and no run to keep notes beside.
  async metrics() {
    return { names: [], bad_lines: 0 };
  }

  async series() {
    return {};
  }

  async telling() {
    return null;
  }

  async notes() {
    return { notes: [], off: "An exported page keeps no notes." };
  }

  timeline() {
    return this.json("timeline");
  }

  async head(run, step) {
    this.kept ??= this.json("head").then((value) => new StepHead(0, value));
    const head = await this.kept;
    if (step !== head.step) throw new ApiError(`This file holds step ${head.step} only.`, 404);
    return head;
  }

  forgetHeads() {}

  async group(head, group) {
    if (!head.groups.some((entry) => entry.group === group)) throw new ApiError("This file holds one group only.", 404);
    this.tokens ??= this.read("tokens").then(responsesOf);
    return this.tokens;
  }

  async response(head, row) {
    const found = (await this.group(head, head.groups[0].group)).find((response) => response.row === row);
    if (!found) throw new ApiError(`This file does not hold response ${row}.`, 404);
    return found;
  }

  async pair(head, group, row) {
    this.pairs ??= this.json("pairs");
    const pairs = await this.pairs;
    return row === null ? pairs.first : pairs.of[row];
  }

  // A single file does not carry the libraries that render.
  async renderWorker() {
    return null;
  }

  step(head) {
    return this.group(head, head.groups[0].group);
  }
}
