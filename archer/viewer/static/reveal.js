// Brings the chosen token's text on the screen, whatever stands above it, and moves nothing where it is there already.

export function revealToken(heatmap, token, sticky) {
  if (token === null) return;
  requestAnimationFrame(() => {
    const point = heatmap.pointOf(token);
    if (!point) return;
    const top = (sticky?.offsetHeight ?? 0) + 8;
    if (point.clientY >= top && point.clientY <= window.innerHeight - 40) return;
    window.scrollBy(0, point.clientY - Math.max(top + 60, window.innerHeight * 0.4));
  });
}
