// Brings the chosen token's text on the screen, whatever stands above it, and moves nothing where it is there already.
// A token below the screen comes up to its lower part, so that the group's head and strips stay in sight if they can.

export function revealToken(heatmap, token, sticky) {
  if (token === null) return;
  requestAnimationFrame(() => {
    const point = heatmap.pointOf(token);
    if (!point) return;
    const stays = sticky && getComputedStyle(sticky).position === "sticky";
    const top = (stays ? sticky.offsetHeight : 0) + 8;
    if (point.clientY >= top && point.clientY <= window.innerHeight - 40) return;
    window.scrollBy(0, point.clientY - Math.max(top + 60, window.innerHeight * (point.clientY < top ? 0.4 : 0.7)));
  });
}
