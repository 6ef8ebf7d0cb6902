// Which positions the strips and charts show: all, or those between two ends that a drag has marked.

const LEAST = 8; // tokens

export function parseZoom(text) {
  const match = /^(\d{1,9})-(\d{1,9})$/.exec(text);
  return match && Number(match[2]) - Number(match[1]) >= LEAST ? [Number(match[1]), Number(match[2])] : null;
}

// The part of a response of some length that is shown, [from, to).
export function zoomed(zoom, length) {
  if (!zoom || zoom[0] >= length) return [0, Math.max(length, 1)];
  return [zoom[0], Math.max(Math.min(zoom[1], length), zoom[0] + 1)];
}

// A drag over a canvas marks positions; a double click shows all of them again. `positionAt(x)` is asked with a
// distance from the canvas's left edge, `change` gets "from-to" or "".
export class Brush {
  constructor(canvas, frame, positionAt, change) {
    this.mark = document.createElement("i");
    this.mark.className = "brush";
    this.mark.hidden = true;
    frame.append(this.mark);
    let began = null;
    const x = (event) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button === 0) began = x(event);
      this.dragged = false;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (began === null || !(event.buttons & 1)) return;
      const now = x(event);
      if (!this.dragged && Math.abs(now - began) < 6) return;
      if (!this.dragged) canvas.setPointerCapture(event.pointerId);
      this.dragged = true;
      this.mark.hidden = false;
      this.mark.style.left = `${Math.max(0, Math.min(began, now))}px`;
      this.mark.style.width = `${Math.abs(now - began)}px`;
    });
    canvas.addEventListener("pointerup", (event) => {
      if (this.dragged && began !== null) {
        const [from, to] = [positionAt(began), positionAt(x(event))].sort((a, b) => a - b);
        const [low, high] = [Math.floor(from), Math.ceil(to)];
        change(`${Math.max(0, low)}-${Math.max(high, low + LEAST)}`);
      }
      this.mark.hidden = true;
      began = null;
    });
    canvas.addEventListener("dblclick", () => change(""));
    // The click that ends a drag is no click on a token.
    canvas.addEventListener("click", (event) => this.dragged && event.stopImmediatePropagation(), true);
  }
}
