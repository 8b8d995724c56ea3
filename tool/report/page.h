// The looks and the little behaviour of the HTML page. The colours of series are Okabe and Ito's, which colour-blind
// readers tell apart; heat runs from vermilion over grey to blue for the same reason. The script only sorts tables,
// hides series and opens the tables for print: without it everything can still be read.
#pragma once

namespace attune {

inline constexpr const char* kPageStyle = R"css(
:root { color-scheme: light dark;
  --paper: #ffffff; --ink: #1d2126; --soft: #5d6670; --rule: #dfe3e7; --wash: #f5f7f8; --good: #00694f; --bad: #b0400a;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #b5578d; --s4: #b98200; --s5: #3d94c9; --none: #eef0f2; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14171a; --ink: #e5e8eb; --soft: #98a2ac; --rule: #31373d; --wash: #1c2024; --good: #4cc9a0; --bad: #f0925c;
  --s0: #56a8e0; --s1: #f0803c; --s2: #2fc79b; --s3: #e39cc4; --s4: #e6b040; --s5: #8ccbf2; --none: #22272b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2.5rem 1.5rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 1.25rem; margin: 3rem 0 0.75rem; padding-top: 1rem; border-top: 1px solid var(--rule); }
h3 { font: 600 0.95rem/1.4 ui-monospace, "SF Mono", Menlo, Consolas, monospace; margin: 2rem 0 0.5rem;
  overflow-wrap: anywhere; }
p.sub { margin: 0.4rem 0 0; color: var(--soft); }
ul { padding-left: 1.2rem; } li { margin: 0.35rem 0; overflow-wrap: anywhere; }
ul.verdict { list-style: none; padding: 1rem 1.25rem; background: var(--wash); border-left: 3px solid var(--s0);
  border-radius: 0 6px 6px 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 1.25rem; }
figure { margin: 0; min-width: 0; }
figcaption { color: var(--soft); font-size: 0.85rem; margin-bottom: 0.25rem; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
figure.map { overflow-x: auto; } figure.map svg { width: auto; max-width: none; }
svg text { fill: var(--soft); font-size: 12.5px; font-family: inherit; font-variant-numeric: tabular-nums; }
svg .name { fill: var(--ink); } svg .label { font-size: 12px; }
.grid { stroke: var(--rule); stroke-width: 1; } .axis { stroke: var(--soft); stroke-width: 1; }
.level { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 7 5; }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); }
.s4 { --c: var(--s4); } .s5 { --c: var(--s5); }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }
.d1 .line { stroke-dasharray: 8 3; } .d2 .line { stroke-dasharray: 2 3; } .d3 .line { stroke-dasharray: 9 3 2 3; }
.band { fill: var(--c); opacity: 0.18; } .dot { fill: var(--c); stroke: var(--paper); stroke-width: 1; }
.key { cursor: pointer; } .key.off { opacity: 0.35; } .series.off { display: none; }
svg .heat { font-size: 13px; fill: #16191c; }
.h0 rect { fill: #b5480f; } .h1 rect { fill: #e2905f; } .h2 rect { fill: #f4cfb8; } .h3 rect { fill: #d9dde0; }
.h4 rect { fill: #bddaee; } .h5 rect { fill: #64abd9; } .h6 rect { fill: #0b62a3; } .none rect { fill: var(--none); }
svg .h0 .heat, svg .h6 .heat { fill: #ffffff; }
details { margin: 0.75rem 0; } summary { cursor: pointer; color: var(--soft); font-size: 0.9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.85rem; font-variant-numeric: tabular-nums;
  margin-top: 0.5rem; }
caption { text-align: left; color: var(--soft); padding-bottom: 0.3rem; }
th, td { text-align: left; padding: 0.32rem 0.7rem 0.32rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
th.n, td.n { text-align: right; } td { overflow-wrap: anywhere; } td.n { white-space: nowrap; }
th button { all: unset; cursor: pointer; font-weight: 600; } th button:focus-visible { outline: 2px solid var(--s0); }
th[aria-sort=ascending] button::after { content: " \2191"; }
th[aria-sort=descending] button::after { content: " \2193"; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
.weak { color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.15rem 1.25rem; font-size: 0.9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media print { body { max-width: none; padding: 0; font-size: 11pt; } h2 { break-after: avoid; }
  figure, tr { break-inside: avoid; }
  .pair { grid-template-columns: 1fr 1fr; } summary { display: none; } }
)css";

inline constexpr const char* kPageScript = R"js(
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(h => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = row => {
        const cell = row.cells[column];
        return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
      };
      const order = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
        : typeof a !== typeof b ? (typeof a === "number" ? -1 : 1) : a.localeCompare(b, undefined, {numeric: true});
      const rows = [...table.tBodies[0].rows].sort((a, b) => order(value(a), value(b)) * (down ? -1 : 1));
      table.tBodies[0].append(...rows);
    });
  });
}
for (const key of document.querySelectorAll(".key"))
  key.addEventListener("click", () => {
    const off = key.classList.toggle("off");
    key.closest("svg").querySelector(`.series[data-series="${key.dataset.series}"]`).classList.toggle("off", off);
  });
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(d => { d.open = true; }));
)js";

}  // namespace attune
