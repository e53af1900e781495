/* Tables of class nc-table: headings that sort, and above them a search field and choices of values.
   Without this script they are plain tables. What is wider than its place, a figure too, gets a sign. */
"use strict";

(() => {
  const LONG = 12; // rows from which a filter is worth its place

  const shown = (cell) => (cell?.querySelector(".nc-v") ?? cell)?.textContent.trim() ?? "";

  const key = (text) => {
    const number = parseFloat(text.replace("−", "-"));
    return { text, number: /^[+\-−]?\d/.test(text) ? number : NaN };
  };

  const compare = (a, b) => {
    if (!isNaN(a.number) && !isNaN(b.number)) return a.number - b.number;
    if (isNaN(a.number) !== isNaN(b.number)) return isNaN(a.number) ? 1 : -1;
    return a.text.localeCompare(b.text);
  };

  const sorted = (table, heading, column, rows, next) => {
    table.querySelectorAll("[aria-sort]").forEach((h) => h.removeAttribute("aria-sort"));
    const order = [...rows];
    if (next) {
      heading.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      const keys = new Map(rows.map((r) => [r, key(shown(r.cells[column]))]));
      const empty = (k) => isNaN(k.number) && /^(|–|no record)$/.test(k.text);
      order.sort((a, b) => {
        const [x, y] = [keys.get(a), keys.get(b)];
        return empty(x) || empty(y) ? empty(x) - empty(y) : sign * compare(x, y);
      });
    }
    table.tBodies[0].append(...order);
  };

  const headingsOf = (table) => {
    const first = table.tHead.rows[0].querySelectorAll("th[rowspan]");
    const last = [...table.tHead.rows[table.tHead.rows.length - 1].querySelectorAll("th[data-sort]")];
    return table.tHead.rows.length > 1 ? [...first, ...last] : last;
  };

  const sortable = (table, rows) => {
    headingsOf(table).forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "nc-sort";
      button.title = "Sort by this column";
      button.append(...heading.childNodes);
      if (!button.textContent.trim()) return;
      heading.append(button);
      button.addEventListener("click", () => {
        const before = heading.getAttribute("aria-sort");
        const next = before === "descending" ? "ascending" : before === "ascending" ? null : "descending";
        sorted(table, heading, column, rows, next);
      });
    });
  };

  const labelled = (box, words, control) => {
    const label = document.createElement("label");
    label.append(`${words} `, control);
    box.append(label);
    return control;
  };

  /* A choice of the values in a column; data-apart: one at a time, else all of them too. */
  const choice = (box, heading, column, rows) => {
    const select = labelled(box, heading.textContent.trim(), document.createElement("select"));
    const values = [...new Set(rows.map((row) => shown(row.cells[column])))];
    values.sort((a, b) => compare(key(a), key(b)));
    if (!("apart" in heading.dataset)) select.add(new Option("all", ""));
    values.forEach((value) => select.add(new Option(value, value)));
    const wanted = heading.dataset.filter;
    select.value = values.includes(wanted) ? wanted : select.options[0].value;
    return { select, column, heading, values: rows.map((row) => shown(row.cells[column])) };
  };

  /* Sorting by a list, for phones on which a table has no headings. */
  const sortList = (box, table, rows) => {
    const headings = headingsOf(table);
    const select = labelled(box, "Sort by", document.createElement("select"));
    select.parentElement.className = "nc-by";
    select.add(new Option("as it stands", ""));
    headings.forEach((heading, column) => select.add(new Option(heading.textContent.trim(), column)));
    select.addEventListener("change", () => {
      const column = Number(select.value);
      sorted(table, headings[column], column, rows, select.value ? "ascending" : null);
    });
  };

  /* Where rows are when a table shows none: buttons for each other value of one choice, the others kept; where
     none helps, one for the first row that the last choice leaves. */
  const otherwise = (choices, fits, rows) => {
    const button = (words, k, changed) => {
      const one = document.createElement("button");
      one.type = "button";
      one.className = "nc-more";
      one.textContent = words;
      one.addEventListener("click", () => {
        changed.forEach((c) => { c.select.value = c.values[k]; });
        changed[0].select.dispatchEvent(new Event("input"));
      });
      return one;
    };
    const found = choices.flatMap((c) => {
      const first = new Map();
      const count = new Map();
      c.values.forEach((value, k) => {
        if (!fits(k, [c])) return;
        if (!first.has(value)) first.set(value, k);
        count.set(value, (count.get(value) ?? 0) + 1);
      });
      return [...first].map(([value, k]) => button(`${count.get(value)} with ${c.heading.textContent.trim()} ${value}`, k, [c]));
    });
    if (found.length) return found;
    const left = rows.flatMap((_, k) => fits(k, choices) ? [k] : []);
    return left.length ? [button(`${left.length} under other choices`, left[0], choices.filter((c) => c.select.value))] : [];
  };

  const filterable = (figure, table, rows) => {
    const box = document.createElement("div");
    box.className = "nc-tools";
    const choices = headingsOf(table)
      .map((heading, column) => [heading, column])
      .filter(([heading]) => "filter" in heading.dataset)
      .map(([heading, column]) => choice(box, heading, column, rows));
    const input = labelled(box, "Show rows with", document.createElement("input"));
    input.type = "search";
    input.autocomplete = "off";
    const count = document.createElement("span");
    count.setAttribute("role", "status");
    box.append(count);
    figure.querySelector(".nc-scroll").before(box);
    if (figure.matches(".nc-ledger, .nc-errata")) sortList(box, table, rows);
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const show = (event) => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const named = texts.map((text) => words.every((word) => text.includes(word)));
      const fits = (k, free = []) => named[k] &&
        choices.every((c) => free.includes(c) || !c.select.value || c.values[k] === c.select.value);
      rows.forEach((row, k) => { row.hidden = !fits(k); });
      const left = rows.filter((row) => !row.hidden).length;
      for (const { select, column, heading } of choices) { // a column of one value says nothing
        heading.hidden = select.value !== "";
        rows.forEach((row) => { row.cells[column].hidden = heading.hidden; });
      }
      const others = choices.filter((c) => c.select !== event?.target); // the last choice is the one that is wanted
      const instead = left ? [] : otherwise(others, fits, rows);
      const head = words.length || choices.length ? `${left} of ${rows.length} rows${instead.length ? "; " : ""}` : "";
      count.replaceChildren(head, ...instead);
    };
    [input, ...choices.map((c) => c.select)].forEach((control) => control.addEventListener("input", show));
    if (choices.length) show();
  };

  /* One field for all ledgers of a page: what is typed there goes into the field of each. */
  const together = (figures) => {
    if (figures.length < 2) return;
    const box = document.createElement("div");
    box.className = "nc-tools";
    const input = labelled(box, "Show claims of all papers with", document.createElement("input"));
    input.type = "search";
    input.autocomplete = "off";
    input.addEventListener("input", () => {
      for (const each of figures.map((figure) => figure.querySelector("input"))) {
        each.value = input.value;
        each.dispatchEvent(new Event("input"));
      }
    });
    figures[0].before(box);
  };

  /* On a phone a table that ends with the sum of its recalls shows the sums alone, until a button is pressed. */
  const sumsFirst = (figure, table) => {
    const head = [...table.tHead.rows];
    const names = head[0].querySelectorAll("th[rowspan]").length;
    const last = [...head[head.length - 1].cells].slice(head.length > 1 ? 0 : names).map((h) => h.textContent.trim());
    const isPart = last.map((heading) => heading.startsWith("R@"));
    if (!isPart[0] || !last.includes("rSum")) return;
    const cells = [...head[head.length - 1].cells].filter((_, i) => isPart[i]);
    for (const row of table.tBodies[0].rows) cells.push(...[...row.cells].filter((_, i) => isPart[i - names]));
    const groups = head.slice(0, -1).flatMap((row) => {
      let at = 0;
      return [...row.querySelectorAll("th:not([rowspan])")].map((heading) => {
        const [from, whole] = [at, heading.colSpan];
        at += whole;
        return { heading, whole, left: isPart.slice(from, at).filter((part) => !part).length };
      });
    });
    const button = document.createElement("button");
    button.type = "button";
    button.className = "nc-more";
    figure.querySelector(".nc-scroll").before(button);
    const phone = matchMedia("(max-width: 640px)");
    let all = false;
    const show = () => {
      const brief = phone.matches && !all;
      button.hidden = !phone.matches;
      button.textContent = all ? "Show rSum only" : "Show all recalls";
      cells.forEach((cell) => { cell.hidden = brief; });
      for (const { heading, whole, left } of groups) {
        heading.hidden = brief && !left;
        heading.colSpan = brief && left ? left : whole;
      }
    };
    button.addEventListener("click", () => { all = !all; show(); });
    phone.addEventListener("change", show);
    show();
  };

  /* Whether a table fits its place, and where its columns of names begin, which may take half of the place. */
  const place = (box) => {
    const table = box.querySelector("table");
    box.classList.toggle("nc-fits", table.scrollWidth <= box.clientWidth + 1);
    const from = box.getBoundingClientRect().left - box.scrollLeft;
    for (const row of table.rows) {
      for (const name of row.querySelectorAll("tbody th, thead th[rowspan]")) {
        const { left, right } = name.getBoundingClientRect();
        if (right - from <= box.clientWidth / 2) name.style.setProperty("--nc-left", `${Math.max(0, left - from)}px`);
        else name.style.removeProperty("--nc-left");
      }
    }
  };

  const start = () => {
    const watch = new ResizeObserver((entries) => entries.forEach(({ target }) => place(target)));
    for (const figure of document.querySelectorAll("figure.nc-sheet")) {
      const table = figure.querySelector("table.nc-table");
      const rows = [...table.tBodies[0].rows];
      if (rows.length >= LONG || table.querySelector("th[data-filter]")) filterable(figure, table, rows);
      sumsFirst(figure, table);
      sortable(table, rows);
      watch.observe(figure.querySelector(".nc-scroll"));
    }
    const wide = new ResizeObserver((entries) => entries.forEach(({ target }) =>
      target.classList.toggle("nc-scrolls", target.scrollWidth > target.clientWidth + 1)));
    document.querySelectorAll(".bd-article :is(.cell_output, figure, .output.text_html, .nc-scroll, .pst-scrollable-table-container)")
      .forEach((box) => wide.observe(box));
    together([...document.querySelectorAll("figure.nc-ledger")]);
    const open = () => document.querySelector(`.nc-notes li[id="${CSS.escape(location.hash.slice(1))}"]`)
      ?.closest("details").setAttribute("open", "");
    addEventListener("hashchange", open);
    if (location.hash) open();
  };

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
