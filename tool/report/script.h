// SPDX-License-Identifier: Apache-2.0
// The script of the HTML page: sorts and filters tables, hides series, shows labels under the pointer, switches the
// theme, and unfolds everything for printing. A served page also polls for changes. The page is readable without it.
#pragma once

namespace attune {

inline constexpr const char* kPageScript = R"js(
"use strict";
const make = (tag, properties, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

// Tables
const order = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
  : typeof a !== typeof b ? (typeof a === "number" ? -1 : 1) : a.localeCompare(b, undefined, {numeric: true});
const sortable = table => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = make("button", {type: "button", textContent: head.textContent});
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(h => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = row => {
        const cell = row.cells[column];
        if (!cell.classList.contains("n")) return cell.textContent;
        return cell.dataset.v === undefined ? parseFloat(cell.textContent) : Number(cell.dataset.v);
      };
      const rows = [...table.tBodies[0].rows].sort((a, b) => order(value(a), value(b)) * (down ? -1 : 1));
      table.tBodies[0].append(...rows);
    });
  });
};
const filterable = table => {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 8) return;
  const words = make("input", {type: "search", placeholder: "filter rows", size: 24});
  words.setAttribute("aria-label", "Show the rows that have these words");
  const count = make("span", {className: "count"});
  const choices = (table.dataset.facets || "").split(",").filter(Boolean).map(Number).flatMap(column => {
    const values = [...new Set(rows.map(row => row.cells[column].textContent))].sort((a, b) => order(a, b));
    if (values.length < 2 || values.length > 30) return [];
    const head = table.tHead.rows[0].cells[column].textContent;
    const select = make("select", {}, make("option", {value: "", textContent: head + ": all"}),
      ...values.map(v => make("option", {value: "=" + v, textContent: v || "(none)"})));
    select.setAttribute("aria-label", head);
    return [{column, select}];
  });
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const on = wanted.every(word => text.includes(word)) && choices.every(({column, select}) =>
        !select.value || "=" + row.cells[column].textContent === select.value);
      row.classList.toggle("off", !on);
      shown += on;
    }
    count.textContent = shown === rows.length ? `${rows.length} rows` : `${shown} of ${rows.length} rows`;
  };
  [words, ...choices.map(c => c.select)].forEach(control => control.addEventListener("input", apply));
  table.parentElement.before(make("div", {className: "tools"}, words, ...choices.map(c => c.select), count));
  apply();
};

// Sections of many figures
const choosable = section => {
  const figures = [...section.querySelectorAll(":scope > .figure")];
  if (figures.length < 4) return;
  const words = make("input", {type: "search", placeholder: "show only, e.g. d128 causal", size: 30});
  words.setAttribute("aria-label", "Show the figures whose title has these words");
  words.addEventListener("input", () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const figure of figures) {
      const title = (figure.querySelector("h3") || figure).textContent.toLowerCase();
      figure.classList.toggle("off", !wanted.every(word => title.includes(word)));
    }
  });
  figures[0].before(make("div", {className: "tools"}, words));
};

// Plots
const tip = make("div", {id: "tip"});
tip.setAttribute("role", "status");
document.body.append(tip);
let near = null;
const leave = () => {
  if (near) near.classList.remove("near");
  near = null;
  tip.classList.remove("on");
};
const hover = svg => {
  const marks = [...svg.querySelectorAll(".dot, .cell, .threshold")].flatMap(mark => {
    const title = mark.querySelector("title");
    if (!title) return [];
    mark.dataset.tip = title.textContent;
    title.remove();
    return [mark];
  });
  if (!marks.length) return;
  const find = event => {
    const over = event.target.closest(".cell, .threshold");
    if (over && over.dataset.tip) return over;
    let best = null, least = 30;
    for (const mark of marks) {
      if (!mark.matches(".dot") || mark.closest(".off")) continue;
      const box = mark.getBoundingClientRect();
      const away = Math.hypot(box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY);
      if (away < least) best = mark, least = away;
    }
    return best;
  };
  const show = event => {
    const mark = find(event);
    if (mark !== near) leave();
    if (!mark) return;
    near = mark;
    mark.classList.add("near");
    tip.textContent = mark.dataset.tip;
    tip.classList.add("on");
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = (event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10
      : event.clientY + 18) + "px";
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", leave);
};
const hideable = key => {
  key.setAttribute("tabindex", "0");
  key.setAttribute("role", "button"), key.ownerSVGElement.setAttribute("role", "group");
  const toggle = () => {
    const off = key.classList.toggle("off");
    key.setAttribute("aria-pressed", String(!off));
    key.closest("svg").querySelector(`.series[data-series="${key.dataset.series}"]`).classList.toggle("off", off);
  };
  key.addEventListener("click", toggle);
  key.addEventListener("keydown", event => {
    if (event.key === "Enter" || event.key === " ") event.preventDefault(), toggle();
  });
};

const start = () => {
  document.querySelectorAll("main table").forEach(table => { filterable(table); sortable(table); });
  document.querySelectorAll("main section").forEach(choosable);
  document.querySelectorAll("main svg").forEach(hover);
  document.querySelectorAll("main .key").forEach(hideable);
};
start();

// Light and dark
const themes = ["auto", "light", "dark"];
let theme = "auto";
try { theme = localStorage.getItem("attune-theme") || "auto"; } catch { /* a page without storage */ }
const chooser = make("button", {type: "button", className: "plain"});
const paint = () => {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  chooser.textContent = "Theme: " + theme;
};
chooser.addEventListener("click", () => {
  theme = themes[(themes.indexOf(theme) + 1) % themes.length];
  try { localStorage.setItem("attune-theme", theme); } catch { /* a page without storage */ }
  paint();
});
paint();
document.querySelector("header").append(chooser);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(d => { d.open = true; }));
)js";

// Appended to a served page: polls every two seconds whether the records changed, and replaces the content in place,
// keeping the reader's sorting, filters, focus, hidden series and open tables.
inline constexpr const char* kLiveScript = R"js(
const live = document.getElementById("live");
let known = document.documentElement.dataset.revision;
const say = (text, bad) => { live.textContent = text; live.classList.toggle("bad", bad); };
// What the reader has set is kept by name, because rows and figures may come in between.
const nameOf = e => [e.closest("section")?.id, e.closest(".figure")?.querySelector("h3")?.textContent,
  e.closest("details") ? "fold" : "", e.closest("svg")?.getAttribute("aria-label")].join("/");
const each = (selector, extra = () => "") => {
  const seen = new Map(), all = [];
  for (const element of document.querySelectorAll("main " + selector)) {
    const name = nameOf(element) + "/" + extra(element), count = (seen.get(name) || 0) + 1;
    seen.set(name, count), all.push([name + "/" + count, element]);
  }
  return all;
};
const headOf = th => th.textContent, seriesOf = key => key.querySelector("text")?.textContent;
const all = {
  controls: () => each(".tools input, .tools select"),
  folds: () => each("details"),
  heads: () => each("th", headOf),
  series: () => each(".key", seriesOf),
  scrolls: () => each(".scroll, figure"),
};
const keep = () => {
  const focused = document.activeElement, state = {};
  for (const [kind, list] of Object.entries(all)) state[kind] = new Map(list().map(([name, e]) => [name, {
    value: e.value, open: e.open, sort: e.getAttribute("aria-sort"), off: e.classList.contains("off"),
    left: e.scrollLeft, top: e.scrollTop, from: e.selectionStart,
    focus: focused !== document.body && (e === focused || (kind === "heads" && e.contains(focused)))}]));
  return state;
};
const bring = state => {
  const again = (kind, act) => all[kind]().forEach(([name, e]) => {
    const was = state[kind].get(name);
    if (!was) return;
    act(e, was);
    if (!was.focus) return;
    const to = kind === "heads" ? e.querySelector("button") : e;
    to.focus({preventScroll: true});
    if (to.matches("input") && was.from != null) to.setSelectionRange(was.from, was.from);
  });
  again("folds", (e, was) => { e.open = was.open; });
  again("heads", (e, was) => {
    if (!was.sort) return;
    e.querySelector("button").click();
    if (was.sort === "descending") e.querySelector("button").click();
  });
  again("controls", (e, was) => {
    if (e.value === was.value) return;
    e.value = was.value;
    e.dispatchEvent(new Event("input"));
  });

  again("series", (e, was) => { if (was.off) e.dispatchEvent(new Event("click")); });
  again("scrolls", (e, was) => { e.scrollLeft = was.left, e.scrollTop = was.top; });
};
const refresh = async () => {
  const answer = await fetch("/", {cache: "no-store"});
  if (!answer.ok) throw new Error(await answer.text());
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  const state = keep();
  leave();
  for (const part of ["header > div", "nav", "main"])
    document.querySelector(part).replaceWith(next.querySelector(part));
  start();
  bring(state);
  known = next.documentElement.dataset.revision;
};
const look = async () => {
  try {
    const answer = await fetch("/revision", {cache: "no-store"});
    const text = await answer.text();
    if (!answer.ok) say(text.trim(), true);
    else {
      if (text.trim() !== known) await refresh();
      const left = /not finished: .*/.exec(document.querySelector("p.sub").textContent);
      say((left ? "waiting for the next row, " : "live, ") + "looked at " + new Date().toLocaleTimeString(), false);
    }
  } catch (error) { say("attune serve does not answer: " + error.message, true); }
  setTimeout(look, 2000);
};
look();
)js";

}  // namespace attune
