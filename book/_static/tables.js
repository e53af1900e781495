/* Tables of class nc-table: a filter above, headings that sort. Without this script they are plain tables. */
"use strict";

(() => {
  const LONG = 12; // rows from which a filter is worth its place

  const shown = (cell) => (cell?.querySelector(".nc-v") ?? cell)?.textContent.trim() ?? "";

  const key = (cell) => {
    const text = shown(cell);
    const number = parseFloat(text.replace("−", "-"));
    return { text, number: /^[+\-−]?\d/.test(text) ? number : NaN };
  };

  const compare = (a, b) => {
    if (!isNaN(a.number) && !isNaN(b.number)) return a.number - b.number;
    if (isNaN(a.number) !== isNaN(b.number)) return isNaN(a.number) ? 1 : -1;
    return a.text.localeCompare(b.text);
  };

  const sorted = (table, heading, column, rows) => {
    const before = heading.getAttribute("aria-sort");
    const next = before === "descending" ? "ascending" : before === "ascending" ? null : "descending";
    table.querySelectorAll("[aria-sort]").forEach((h) => h.removeAttribute("aria-sort"));
    const order = [...rows];
    if (next) {
      heading.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      const keys = new Map(rows.map((r) => [r, key(r.cells[column])]));
      const empty = (k) => isNaN(k.number) && /^(|–|no record)$/.test(k.text);
      order.sort((a, b) => {
        const [x, y] = [keys.get(a), keys.get(b)];
        return empty(x) || empty(y) ? empty(x) - empty(y) : sign * compare(x, y);
      });
    }
    table.tBodies[0].append(...order);
  };

  const sortable = (table, rows) => {
    const first = table.tHead.rows[0].querySelectorAll("th[rowspan]");
    const last = [...table.tHead.rows[table.tHead.rows.length - 1].querySelectorAll("th[data-sort]")];
    const headings = table.tHead.rows.length > 1 ? [...first, ...last] : last;
    headings.forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "nc-sort";
      button.title = "Sort by this column";
      button.append(...heading.childNodes);
      if (!button.textContent.trim()) return;
      heading.append(button);
      button.addEventListener("click", () => sorted(table, heading, column, rows));
    });
  };

  const filterable = (figure, table, rows) => {
    const box = document.createElement("div");
    box.className = "nc-tools";
    const label = document.createElement("label");
    label.textContent = "Show rows with ";
    const input = document.createElement("input");
    input.type = "search";
    input.autocomplete = "off";
    label.append(input);
    const count = document.createElement("span");
    count.setAttribute("role", "status");
    box.append(label, count);
    figure.querySelector(".nc-scroll").before(box);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        left += !row.hidden;
      }
      count.textContent = words.length ? `${left} of ${rows.length} rows` : "";
    });
  };

  const start = () => {
    for (const figure of document.querySelectorAll("figure.nc-sheet")) {
      const table = figure.querySelector("table.nc-table");
      const rows = [...table.tBodies[0].rows];
      sortable(table, rows);
      if (rows.length >= LONG) filterable(figure, table, rows);
    }
    const open = () => document.querySelector(`.nc-notes li[id="${CSS.escape(location.hash.slice(1))}"]`)
      ?.closest("details").setAttribute("open", "");
    addEventListener("hashchange", open);
    if (location.hash) open();
  };

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
