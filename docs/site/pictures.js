// Pictures follow the colours that were chosen on the page, not only those of the system.
const sources = [...document.querySelectorAll("picture source[media]")].map((source) => ({
  source,
  dark: source.media.includes("dark"),
}));
const follow = () => {
  const dark = document.body.dataset.mdColorScheme === "slate";
  for (const entry of sources) entry.source.media = entry.dark === dark ? "all" : "not all";
};
new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
follow();
