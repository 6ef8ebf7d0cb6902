// Values to colours. Entropy and its like: from paper through cividis. Influence: blue, paper, red, zero in the middle.

const LIGHT = {
  sequential: [[251, 250, 246], [246, 234, 172], [206, 190, 112], [140, 137, 119], [74, 84, 109], [0, 32, 76]],
  diverging: [[24, 84, 155], [78, 147, 198], [164, 206, 228], [251, 250, 246], [246, 188, 155], [219, 104, 82], [165, 15, 38]],
};
const DARK = {
  sequential: [[22, 24, 29], [19, 46, 93], [72, 84, 112], [124, 123, 120], [187, 174, 107], [255, 233, 69]],
  diverging: [[140, 199, 245], [72, 140, 205], [36, 78, 122], [22, 24, 29], [124, 54, 40], [212, 98, 66], [255, 172, 132]],
};
export const STEPS = 512;

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function mix(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const weight = place - low;
  return stops[low].map((value, index) => Math.round(value + (stops[low + 1][index] - value) * weight));
}

// Text on a colour is soft black or soft white where that can be read well, pure black or white between.
const INKS = { dark: ["#17181c", "#000000"], light: ["#f4f2ec", "#ffffff"] };
const SOFT_LUMINANCE = { dark: luminance([23, 24, 28]), light: luminance([244, 242, 236]) };
const READABLE = 4.6;
const EVEN = Math.sqrt(1.05 * 0.05) - 0.05; // where black and white have the same contrast, as WCAG computes it

function luminance(colour) {
  const [red, green, blue] = colour.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

export function contrast(a, b) {
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

function inkOn(colour) {
  const back = luminance(colour);
  const side = back < EVEN ? "light" : "dark";
  return INKS[side][contrast(back, SOFT_LUMINANCE[side]) >= READABLE ? 0 : 1];
}

// Maps a value to one of STEPS + 1 colours; `ink[i]` is the colour of text on colour i.
export class Scale {
  constructor(ramp, bound, gamma, dark, least = 0) {
    this.ramp = ramp;
    this.least = least;
    this.bound = bound;
    this.key = `${ramp}/${bound}/${gamma}/${dark}`;
    const stops = (dark ? DARK : LIGHT)[ramp];
    this.rgb = [];
    this.css = [];
    this.pixels = new Uint32Array(STEPS + 1);
    this.ink = [];
    for (let index = 0; index <= STEPS; index += 1) {
      let share = index / STEPS;
      if (ramp === "diverging") {
        const signed = 2 * share - 1;
        share = (Math.sign(signed) * Math.abs(signed) ** gamma + 1) / 2;
      } else {
        share **= gamma;
      }
      const colour = mix(stops, share);
      this.rgb.push(colour);
      this.css.push(`rgb(${colour.join(",")})`);
      this.pixels[index] = pixel(colour);
      this.ink.push(inkOn(colour));
    }
  }

  index(value) {
    const share = value / this.bound;
    if (this.ramp === "diverging") return Math.round(((Math.min(Math.max(share, -1), 1) + 1) / 2) * STEPS);
    return Math.round(Math.min(Math.abs(share), 1) * STEPS);
  }
}

export function pixel([red, green, blue], alpha = 255) {
  return ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

// What is no value has colours of its own: not computed (hatched), outside the loss mask (flat grey), NaN or infinite
// (magenta, which is on no ramp).
export function specialColours(dark) {
  return dark
    ? { missing: [40, 42, 48], missingLine: [76, 78, 84], failed: [226, 64, 200], masked: [44, 46, 52], paper: [22, 24, 29] }
    : { missing: [243, 241, 235], missingLine: [205, 202, 193], failed: [196, 0, 150], masked: [222, 220, 214], paper: [251, 250, 246] };
}

// 99th percentile of |x| over some arrays, 1 where there is nothing but zeros.
export function boundOf(arrays) {
  let size = 0;
  for (const array of arrays) size += array.length;
  const sizes = new Float32Array(size);
  let used = 0;
  for (const array of arrays) {
    for (let index = 0; index < array.length; index += 1) {
      const value = Math.abs(array[index]);
      if (value < Infinity) sizes[used++] = value;
    }
  }
  const finite = sizes.subarray(0, used).sort();
  if (!used) return 1;
  const place = 0.99 * (used - 1);
  const low = Math.floor(place);
  const high = Math.min(low + 1, used - 1);
  return finite[low] + (finite[high] - finite[low]) * (place - low) || 1;
}
