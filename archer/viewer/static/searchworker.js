// Regular expressions, in a thread of their own: one that backtracks for ever costs this thread, not the page.

"use strict";

self.onmessage = ({ data }) => {
  const pattern = new RegExp(data.source, data.flags);
  const found = data.texts.map((text) => {
    const edges = [];
    for (const match of text.matchAll(pattern)) {
      if (match[0].length) edges.push(match.index, match.index + match[0].length);
      if (edges.length >= 2 * data.most) break;
    }
    return Int32Array.from(edges);
  });
  self.postMessage(found, found.map((edges) => edges.buffer));
};

self.postMessage("ready");
