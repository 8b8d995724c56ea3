// SPDX-License-Identifier: Apache-2.0
// The style of the HTML page. Series use the colours of Okabe and Ito, which colour-blind readers can distinguish; heat
// maps run from vermilion over grey to blue for the same reason, and every cell prints its number. Light and dark
// follow the system or the reader's choice (data-theme on the root); print is always light.
#pragma once

namespace attune {

inline constexpr const char* kPageStyle = R"css(
:root { color-scheme: light;
  --paper: #ffffff; --ink: #171b20; --soft: #59636e; --rule: #dde2e7; --wash: #f4f6f8; --card: #ffffff;
  --good: #00694f; --bad: #b0400a; --accent: #005f99; --shade: 0 1px 2px rgb(20 30 40 / 0.06);
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #b5578d; --s4: #b98200; --s5: #3d94c9; --none: #eef1f3; }
@media not print {
@media (prefers-color-scheme: dark) { :root:not([data-theme=light]) { color-scheme: dark;
  --paper: #111417; --ink: #e6e9ec; --soft: #9aa4ae; --rule: #2c3238; --wash: #181c20; --card: #171b1f;
  --good: #4cc9a0; --bad: #f0925c; --accent: #6cb6ea; --shade: none;
  --s0: #56a8e0; --s1: #f0803c; --s2: #2fc79b; --s3: #e39cc4; --s4: #e6b040; --s5: #8ccbf2; --none: #1f2428; } }
:root[data-theme=dark] { color-scheme: dark;
  --paper: #111417; --ink: #e6e9ec; --soft: #9aa4ae; --rule: #2c3238; --wash: #181c20; --card: #171b1f;
  --good: #4cc9a0; --bad: #f0925c; --accent: #6cb6ea; --shade: none;
  --s0: #56a8e0; --s1: #f0803c; --s2: #2fc79b; --s3: #e39cc4; --s4: #e6b040; --s5: #8ccbf2; --none: #1f2428; }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 4rem; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
header, nav > div, main, footer { max-width: 80rem; margin: 0 auto; padding: 0 1.75rem; }
header { padding-top: 2.75rem; padding-bottom: 1.5rem; display: flex; gap: 1.5rem; align-items: start; }
header > div { flex: 1; min-width: 0; }
h1 { font-size: 2.1rem; line-height: 1.15; margin: 0; letter-spacing: -0.02em; font-weight: 680; }
p.sub { margin: 0.5rem 0 0; color: var(--soft); overflow-wrap: anywhere; }
nav { position: sticky; top: 0; z-index: 2; background: var(--paper); border-bottom: 1px solid var(--rule); }
nav > div { display: flex; gap: 0.25rem 1.35rem; flex-wrap: wrap; padding-top: 0.6rem; padding-bottom: 0.6rem; }
nav a { color: var(--soft); text-decoration: none; font-size: 0.88rem; white-space: nowrap; }
nav a:hover, nav a:focus-visible { color: var(--accent); text-decoration: underline; text-underline-offset: 0.3em; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 0 0 0.85rem; letter-spacing: -0.01em; font-weight: 640; }
section { padding: 2.4rem 0 0.4rem; } section + section { border-top: 1px solid var(--rule); margin-top: 2rem; }
h3 { font: 600 0.92rem/1.4 ui-monospace, "SF Mono", Menlo, Consolas, monospace; margin: 0 0 0.5rem;
  overflow-wrap: anywhere; }
p.note { color: var(--soft); margin: 0 0 0.6rem; max-width: 62rem; }
ul { padding-left: 1.2rem; } li { margin: 0.35rem 0; overflow-wrap: anywhere; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 0.9rem;
  padding-top: 1.75rem; }
.fact { border: 1px solid var(--rule); border-radius: 10px; padding: 1rem 1.15rem; background: var(--card);
  box-shadow: var(--shade); }
.fact b { display: block; font-size: 1.9rem; line-height: 1.15; font-weight: 640; letter-spacing: -0.02em;
  font-variant-numeric: tabular-nums; }
.fact span { display: block; font-weight: 560; font-size: 0.93rem; }
.fact small { display: block; color: var(--soft); font-size: 0.83rem; line-height: 1.4; overflow-wrap: anywhere; }
ul.verdict { list-style: none; padding: 1rem 1.35rem; margin: 0; background: var(--wash);
  border-left: 3px solid var(--accent); border-radius: 0 8px 8px 0; }
.uses { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0.9rem; }
.use { border: 1px solid var(--rule); border-radius: 10px; padding: 1rem 1.2rem; background: var(--card);
  box-shadow: var(--shade); }
.use h3 { font: 640 1rem/1.35 inherit; font-family: inherit; margin: 0 0 0.35rem; } .use p { margin: 0; }
.use ul { margin: 0.5rem 0 0; font-size: 0.88rem; color: var(--soft); }
.figure { margin: 1.6rem 0 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
figure { margin: 0; min-width: 0; border: 1px solid var(--rule); border-radius: 10px; padding: 0.9rem 1rem 0.6rem;
  background: var(--card); box-shadow: var(--shade); }
figcaption { color: var(--soft); font-size: 0.83rem; line-height: 1.4; margin-bottom: 0.5rem; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
figure.map { overflow-x: auto; width: fit-content; max-width: 100%; }
figure.map svg { width: auto; max-width: none; }
.pair > .plot:only-child { max-width: 46rem; }
svg text { fill: var(--soft); font-size: 12.5px; font-family: inherit; font-variant-numeric: tabular-nums; }
svg .name { fill: var(--ink); } svg .label { font-size: 12px; }
.grid { stroke: var(--rule); stroke-width: 1; } .axis { stroke: var(--soft); stroke-width: 1; }
.level { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 7 5; fill: none; }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); }
.s4 { --c: var(--s4); } .s5 { --c: var(--s5); }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }
.d1 .line { stroke-dasharray: 8 3; } .d2 .line { stroke-dasharray: 2 3; } .d3 .line { stroke-dasharray: 9 3 2 3; }
.band { fill: var(--c); opacity: 0.18; } .dot { fill: var(--c); stroke: var(--card); stroke-width: 1; }
.dot.near { stroke: var(--ink); stroke-width: 2; } .cell.near rect { stroke: var(--ink); stroke-width: 2; }
.key { cursor: pointer; } .key.off { opacity: 0.35; } .series.off { display: none; }
.key:focus-visible { outline: 2px solid var(--accent); }
svg .heat { font-size: 13px; fill: #16191c; }
.h0 rect { fill: #b5480f; } .h1 rect { fill: #e2905f; } .h2 rect { fill: #f4cfb8; } .h3 rect { fill: #d9dde0; }
.h4 rect { fill: #bddaee; } .h5 rect { fill: #64abd9; } .h6 rect { fill: #0b62a3; } .none rect { fill: var(--none); }
svg .h0 .heat, svg .h6 .heat { fill: #ffffff; } svg .unclear .heat { fill: var(--soft); }
.unclear rect { fill: var(--none); stroke: var(--rule); stroke-dasharray: 4 3; }
.stroke { stroke: var(--c); stroke-width: 1; opacity: 0.55; fill: none; }
.threshold path { stroke: var(--ink); stroke-width: 4; stroke-linecap: round; }
#tip { position: fixed; z-index: 3; pointer-events: none; white-space: pre-line; max-width: 30rem; display: none;
  background: var(--ink); color: var(--paper); border-radius: 7px; padding: 0.5rem 0.7rem; font-size: 0.82rem;
  line-height: 1.45; box-shadow: 0 4px 16px rgb(0 0 0 / 0.25); font-variant-numeric: tabular-nums; }
#tip.on { display: block; }
details { margin: 0.7rem 0 0; } summary { cursor: pointer; color: var(--soft); font-size: 0.88rem; width: fit-content; }
summary:hover { color: var(--accent); }
.tools { display: flex; gap: 0.5rem; flex-wrap: wrap; align-items: center; margin: 0.5rem 0; font-size: 0.86rem; }
input, select, button.plain { font: inherit; color: inherit; background: var(--card); border: 1px solid var(--rule);
  border-radius: 7px; padding: 0.28rem 0.6rem; max-width: 100%; }
input:focus-visible, select:focus-visible, button:focus-visible { outline: 2px solid var(--accent);
  outline-offset: 1px; }
button.plain { cursor: pointer; font-size: 0.86rem; } .tools .count { color: var(--soft); }
.scroll { overflow: auto; max-height: 34rem; }
thead th { position: sticky; top: 0; background: var(--paper); box-shadow: inset 0 -1px var(--rule); }
table { border-collapse: collapse; width: 100%; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding: 0.3rem 0; }
th, td { text-align: left; padding: 0.36rem 0.9rem 0.36rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
th { font-weight: 600; } tbody tr:hover { background: var(--wash); } tr.off, .figure.off { display: none; }
th.n, td.n { text-align: right; } td { overflow-wrap: break-word; } td.n { white-space: nowrap; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid var(--accent); }
th[aria-sort=ascending] button::after { content: " \2191"; }
th[aria-sort=descending] button::after { content: " \2193"; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
.weak { color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1.4rem; font-size: 0.9rem; margin: 0 0 1.2rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
#live { color: var(--soft); font-size: 0.85rem; } #live.bad { color: var(--bad); }
footer { color: var(--soft); font-size: 0.83rem; padding-top: 2rem; padding-bottom: 3rem; }
@media (max-width: 40rem) { header, nav > div, main, footer { padding-left: 1rem; padding-right: 1rem; }
  figure.plot { overflow-x: auto; } figure.plot svg { min-width: 36rem; }  /* its letters stay readable */
  h1 { font-size: 1.6rem; } dl { grid-template-columns: 1fr; } dt { margin-top: 0.5rem; } }
@media print { header, main, footer { max-width: none; padding-left: 0; padding-right: 0; } body { font-size: 10pt; }
  nav, .tools, #tip, button.plain, summary { display: none; } .scroll { max-height: none; overflow: visible; }
  h2, h3, figcaption { break-after: avoid; }
  figure, tr, .use, .fact, ul.verdict { break-inside: avoid; } .pair { grid-template-columns: 1fr 1fr; }
  section + section { margin-top: 1rem; } * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
)css";

}  // namespace attune
