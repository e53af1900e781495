/* Threshold and marks of the audit's report. Uses what the page holds and asks nothing of the network. */
"use strict";

(() => {
  const KEYS = { w: "wrong", r: "right", u: "unsure" };
  const find = (selector) => document.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const data = JSON.parse(find("#data").textContent);
  const number = (value) => Math.round(value).toLocaleString("en");

  for (const image of all("img[data-picture]")) image.src = data.pictures[image.dataset.picture];

  const download = (name, text, type) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  };

  // -- the threshold ---------------------------------------------------------------------------------------
  const slider = find("#threshold");

  const threshold = () => {
    const at = (name) => data.threshold[name][slider.value];
    const dropped = at("dropped");
    const costs = {
      dropped: [dropped, data.pairs, "pairs"],
      wrong_kept: [at("wrong_kept"), data.pairs - dropped, "kept pairs"],
      right_lost: [at("right_lost"), dropped, "dropped pairs"],
    };
    for (const [name, [value, whole, what]] of Object.entries(costs)) {
      const share = whole > 0 ? (100 * value) / whole : 0;
      find(`#${name}`).textContent = number(value);
      find(`#${name}_of`).textContent = `${share.toFixed(1)} % of ${number(whole)} ${what}`;
    }
    const t = String(+at("t").toFixed(6));
    for (const place of all(".at")) place.textContent = t;
    const said = `${t}: ${number(dropped)} pairs dropped, ${number(at("wrong_kept"))} wrong ones kept, `;
    slider.setAttribute("aria-valuetext", `${said}${number(at("right_lost"))} right ones lost`);
  };

  const keep = async () => {
    const status = find("#keep_status");
    try {
      const packed = Uint8Array.from(atob(data.rows), (letter) => letter.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      const { ids, steps } = JSON.parse(await new Response(stream).text());
      const kept = ids.filter((_, row) => steps[row] <= +slider.value);
      download("keep.txt", kept.map((id) => `${id}\n`).join(""), "text/plain");
      status.textContent = `keep.txt with ${number(kept.length)} ids downloaded.`;
    } catch (error) {
      status.textContent = `This browser could not make the list (${error.message}); use the command instead.`;
    }
  };

  if (slider) {
    slider.addEventListener("input", threshold);
    threshold();
    find("#keep")?.addEventListener("click", keep);
  }

  // -- marks: id -> label, kept in the page and, where the browser allows it, between visits -----------------
  const cards = all(".card");
  const idOf = (card) => data.ids[card.dataset.pair];
  const place = `nclib-audit-${data.checksum}`;
  const undone = []; // [id, label before, row], the latest last
  let marks = new Map();
  let unsaved = false; // marks that neither the browser nor a file holds

  const restore = () => {
    let kept = [];
    try {
      kept = JSON.parse(localStorage.getItem(place) ?? "[]");
      kept = kept.filter(([, label]) => Object.values(KEYS).includes(label));
    } catch {
      kept = []; // no storage here, or another program's content
    }
    marks = new Map([...data.labels, ...kept]);
  };

  const store = () => {
    try {
      localStorage.setItem(place, JSON.stringify([...marks]));
    } catch {
      unsaved = true;
    }
  };

  const draw = () => {
    for (const card of cards) {
      const label = marks.get(idOf(card)) ?? "";
      card.dataset.label = label;
      for (const button of all("button[data-mark]", card))
        button.setAttribute("aria-pressed", String(button.dataset.mark === label));
    }
    for (const list of all(".cards")) {
      const done = all(".card", list).filter((card) => card.dataset.label).length;
      find(`#${list.id}_done`).textContent = `${done} of ${list.children.length} marked.`;
    }
    const counts = Object.values(KEYS).map((label) => [...marks.values()].filter((l) => l === label).length);
    const [wrong, right, unsure] = counts;
    const said = `${marks.size} marked: ${wrong} wrong, ${right} right, ${unsure} unsure.`;
    find("#progress").textContent = marks.size ? said : "Nothing marked yet.";
    find("#save").disabled = !marks.size;
    find("#undo").disabled = !undone.length;
  };

  const set = (id, label) => {
    if (label) marks.set(id, label);
    else marks.delete(id);
    store();
    draw();
  };

  // One card at a time is in the tab order, with its buttons; the arrows move from card to card.
  const current = (card) => {
    for (const other of all(".card", card.parentElement)) {
      other.tabIndex = other === card ? 0 : -1;
      for (const button of all("button[data-mark]", other)) button.tabIndex = other.tabIndex;
    }
  };

  const go = (card) => {
    if (!card) return;
    current(card);
    card.focus({ preventScroll: true });
    card.scrollIntoView({ block: "nearest" });
  };

  // Across: the next card; down: the card below, as many further as there are columns.
  const neighbour = (card, across, down = 0) => {
    const list = [...card.parentElement.children];
    const columns = list.filter((other) => other.offsetTop === list[0].offsetTop).length;
    return list[list.indexOf(card) + across + columns * down];
  };

  const mark = (card, label) => {
    const id = idOf(card);
    const before = marks.get(id);
    undone.push([id, before, card]);
    set(id, before === label ? undefined : label);
  };

  const undo = () => {
    if (!undone.length) return;
    const [id, before, card] = undone.pop();
    set(id, before);
    go(card);
  };

  const onKey = (event) => {
    const card = event.target.closest(".card");
    if (!card || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.toLowerCase();
    const step = { arrowright: [1], arrowleft: [-1], arrowdown: [0, 1], arrowup: [0, -1] }[key];
    if (step) go(neighbour(card, ...step));
    else if (key === "z") undo();
    else if (KEYS[key]) {
      mark(card, KEYS[key]);
      if (marks.has(idOf(card))) go(neighbour(card, 1) ?? card);
    } else return;
    event.preventDefault();
  };

  const onClick = (event) => {
    const button = event.target.closest("button[data-mark]");
    if (button) mark(button.closest(".card"), button.dataset.mark);
  };

  // What a spreadsheet would run as a formula begins with '; the audit takes it off again.
  const guarded = (text) => (/^'*[=+\-@＝＋－＠\t\r\n]/.test(text) ? `'${text}` : text);
  const quoted = (text) => `"${guarded(text).replaceAll('"', '""')}"`;

  const save = () => {
    const rows = [...marks].map(([id, label]) => `${quoted(id)},${label}\r\n`);
    download("checked.csv", `id,label\r\n${rows.join("")}`, "text/csv");
    unsaved = false;
  };

  if (cards.length) {
    restore();
    draw();
    for (const list of all(".cards")) {
      current(list.firstElementChild);
      list.addEventListener("keydown", onKey);
      list.addEventListener("click", onClick);
      list.addEventListener("focusin", (event) => current(event.target.closest(".card")));
    }
    find("#undo").addEventListener("click", undo);
    find("#save").addEventListener("click", save);
    find("#next").addEventListener("click", () => go(cards.find((card) => !card.dataset.label)));
    addEventListener("beforeunload", (event) => unsaved && event.preventDefault());
  } else find("#bar").hidden = true;
})();
