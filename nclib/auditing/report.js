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
      status.textContent = `This browser could not make the list (${error.message}).`;
    }
  };

  if (slider) {
    slider.addEventListener("input", threshold);
    threshold();
    find("#keep")?.addEventListener("click", keep);
  }

  // -- filters ---------------------------------------------------------------------------------------------
  const cards = all(".card");
  const shown = (root) => all(".card:not([hidden])", root);
  const kind = find("#kind");
  const words = find("#words");
  const content = new Map(); // card -> its text and file names, in lower case

  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const card of cards) {
      if (!content.has(card)) {
        const names = all("img", card).map((image) => image.alt);
        content.set(card, [card.textContent, ...names].join(" ").toLowerCase());
      }
      const found = wanted.every((word) => content.get(card).includes(word));
      card.hidden = !found || (kind.value !== "" && card.dataset.kind !== kind.value);
    }
    const unfiltered = kind.value === "" && !wanted.length;
    find("#found").textContent = unfiltered ? "" : `${shown(document).length} of ${cards.length} on this page`;
    for (const list of all(".cards")) current(shown(list)[0]);
  };

  // -- marks and edited captions by id, kept in the page and, where the browser allows it, between visits ----
  const idOf = (card) => data.ids[card.dataset.pair];
  const place = `nclib-audit-${data.checksum}`;
  const UNDONE = 500; // steps that can be undone
  let marks = new Map(); // id -> label
  let edits = new Map(); // id -> caption
  let steps = []; // lists of [id, label before, caption before], the latest last
  let unsaved = false; // marks that neither the browser nor a file holds

  const restore = () => {
    let kept = {};
    try {
      kept = JSON.parse(localStorage.getItem(place)) ?? {};
      if (Array.isArray(kept)) kept = { marks: kept }; // of an earlier page
    } catch {
      kept = {}; // no storage here, or another program's content
    }
    const listed = (name) => (Array.isArray(kept[name]) ? kept[name].filter(Array.isArray) : []);
    const labels = listed("marks").filter(([, label]) => Object.values(KEYS).includes(label));
    marks = new Map([...data.labels, ...labels]);
    edits = new Map([...data.edits, ...listed("edits")].filter(([, text]) => typeof text === "string"));
    steps = listed("steps");
  };

  const store = () => {
    try {
      localStorage.setItem(place, JSON.stringify({ marks: [...marks], edits: [...edits], steps }));
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
      const text = edits.get(idOf(card));
      const edited = card.querySelector(".edited");
      edited.hidden = text === undefined;
      edited.textContent = text ?? "";
      card.toggleAttribute("data-edited", text !== undefined);
    }
    for (const list of all(".cards")) {
      const done = all(".card", list).filter((card) => card.dataset.label).length;
      find(`#${list.id}_done`).textContent = `${done} of ${list.children.length} marked.`;
    }
    const counts = Object.values(KEYS).map((label) => [...marks.values()].filter((l) => l === label).length);
    const [wrong, right, unsure] = counts;
    const said = [];
    if (marks.size) said.push(`${marks.size} marked: ${wrong} wrong, ${right} right, ${unsure} unsure`);
    if (edits.size) said.push(`${edits.size} text${edits.size === 1 ? "" : "s"} edited`);
    find("#progress").textContent = said.length ? `${said.join("; ")}.` : "Nothing marked yet.";
    find("#save").disabled = !said.length;
    find("#undo").disabled = !steps.length;
  };

  const put = (map, id, value) => (value === undefined || value === null ? map.delete(id) : map.set(id, value));

  // A step holds the pairs that it changes, as [id, label, caption].
  const changeAll = (changes) => {
    const before = ([id]) => [id, marks.get(id) ?? null, edits.get(id) ?? null];
    steps = [...steps, changes.map(before)].slice(-UNDONE);
    set(changes);
  };

  const set = (changes) => {
    for (const [id, label, text] of changes) {
      put(marks, id, label);
      put(edits, id, text);
    }
    store();
    draw();
  };

  const change = (id, label, text) => changeAll([[id, label, text]]);

  // One card at a time is in the tab order, with its buttons; the arrows move from card to card.
  const current = (card) => {
    if (!card) return;
    for (const other of all(".card", card.parentElement)) {
      other.tabIndex = other === card ? 0 : -1;
      for (const button of all(".marks button", other)) button.tabIndex = other.tabIndex;
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
    const list = shown(card.parentElement);
    const columns = list.filter((other) => other.offsetTop === list[0].offsetTop).length;
    return list[list.indexOf(card) + across + columns * down];
  };

  const mark = (card, label) => {
    const id = idOf(card);
    change(id, marks.get(id) === label ? undefined : label, edits.get(id));
  };

  // The mark of a card, or "wrong", for all pairs with its caption or in its run of rows.
  const markAlike = (card) => {
    const group = card.querySelector("[data-alike]")?.dataset.alike;
    if (group === undefined) return;
    const label = marks.get(idOf(card)) ?? "wrong";
    const ids = [idOf(card), ...data.alike[group].filter((id) => id !== idOf(card))];
    changeAll(ids.map((id) => [id, label, edits.get(id)]));
  };

  const undo = () => {
    if (!steps.length) return;
    const last = steps.pop();
    const changes = Array.isArray(last[0]) ? last : [last]; // of an earlier page
    set(changes);
    go(shown(document).find((card) => idOf(card) === changes[0][0]));
  };

  // The given caption, whole: long ones are folded, and the last part holds all of them.
  const given = (card) => all(".given-text", card).at(-1).textContent;

  const edit = (card) => {
    if (!card.querySelector("[data-edit]") || card.querySelector("textarea")) return;
    const id = idOf(card);
    const box = document.createElement("textarea");
    box.value = edits.get(id) ?? given(card);
    box.rows = 3;
    box.dir = "auto";
    box.setAttribute("aria-label", "New text; Enter keeps it, Escape leaves it as it was");
    card.querySelector(".pair").after(box);
    box.focus();
    let open = true;
    const close = (kept) => {
      if (!open) return;
      open = false;
      const text = box.value.trim().replace(/\s+/g, " ");
      box.remove();
      const next = text && text !== given(card).trim() ? text : undefined;
      if (kept && next !== edits.get(id)) change(id, marks.get(id), next);
    };
    box.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key !== "Escape" && (event.key !== "Enter" || event.isComposing)) return;
      event.preventDefault();
      close(event.key === "Enter");
      go(card);
    });
    box.addEventListener("blur", () => close(true));
  };

  const onKey = (event) => {
    const card = event.target.closest(".card");
    if (!card || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.toLowerCase();
    const step = { arrowright: [1], arrowleft: [-1], arrowdown: [0, 1], arrowup: [0, -1] }[key];
    if (step) go(neighbour(card, ...step));
    else if (key === "z") undo();
    else if (key === "e") edit(card);
    else if (key === "a") markAlike(card);
    else if (KEYS[key]) {
      mark(card, KEYS[key]);
      if (marks.has(idOf(card))) go(neighbour(card, 1) ?? card);
    } else return;
    event.preventDefault();
  };

  const onClick = (event) => {
    const button = event.target.closest(".marks button");
    if (!button) return;
    const card = button.closest(".card");
    if (button.dataset.mark) mark(card, button.dataset.mark);
    else if (button.dataset.alike) markAlike(card);
    else edit(card);
  };

  // What a spreadsheet would run as a formula begins with '; the audit takes it off again.
  const guarded = (text) => (/^'*[=+\-@＝＋－＠\t\r\n]/.test(text) ? `'${text}` : text);
  const quoted = (text) => `"${guarded(text).replaceAll('"', '""')}"`;

  const save = () => {
    const ids = new Set([...marks.keys(), ...edits.keys()]);
    const rows = [...ids].map((id) => [quoted(id), marks.get(id) ?? "", quoted(edits.get(id) ?? "")]);
    const lines = [["id", "label", "new_caption"], ...rows].map((cells) => `${cells.join(",")}\r\n`);
    download("checked.csv", lines.join(""), "text/csv");
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
    kind.addEventListener("change", filter);
    words.addEventListener("input", filter);
    find("#undo").addEventListener("click", undo);
    find("#save").addEventListener("click", save);
    find("#next").addEventListener("click", () => go(shown(document).find((card) => !card.dataset.label)));
    addEventListener("beforeunload", (event) => unsaved && event.preventDefault());
  } else find("#bar").hidden = true;
})();
