/* Search by sections: takes the place of the theme's search on the search page, without any request.
   Sections and synonyms come from search_sections.js. */
"use strict";

(() => {
  const SHOWN = 30, AROUND = 110; // results, and characters of an excerpt on each side of a hit
  const IDLE = new Set(("a an and are as at be by can do does for from has have how i in is it me my of on or our should " +
    "so than that the their then there these this to use was we what when where which who why will with you your").split(" "));
  const plain = (text) => text.toLowerCase().replace(/\s+/g, " ");
  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const form = (word) => word.length > 4 ? word.replace(/(es|s)$/, "") : word; // pairs finds pair

  /* A term is a list of alternatives: a word, or the synonyms of a phrase in the query. */
  const termsOf = (query, synonyms) => {
    let rest = ` ${plain(query)} `;
    const terms = [];
    for (const group of synonyms) {
      const said = group.filter((phrase) => rest.includes(` ${phrase} `) || (phrase.startsWith("%") && rest.includes(phrase)));
      if (!said.length) continue;
      terms.push(group);
      said.sort((a, b) => b.length - a.length).forEach((phrase) => { rest = rest.replaceAll(phrase, " "); });
    }
    const words = rest.match(/[\p{L}\p{N}_.\-]+/gu) ?? [];
    const kept = words.filter((word) => !IDLE.has(word));
    return [...terms, ...(kept.length || terms.length ? kept : words).map((word) => [form(word)])];
  };

  const matcher = (term) => new RegExp(`(?<![\\p{L}\\p{N}])(?:${term.map(escaped).join("|")})`, "giu");
  const count = (text, pattern) => (text.match(pattern) ?? []).length;

  const ranked = (pages, terms, query) => {
    const bare = (words) => plain(words).replace(/[?.!]+$/, "").trim();
    const asked = bare(query); // a section of this name is the answer
    const minor = ({ heading, uri }) => /^nclib\./.test(heading) || /\b(api|changelog)\.html$/.test(uri);
    const weight = (entry) => minor(entry) ? 0.5 : bare(entry.heading) === asked ? 2 : 1;
    const patterns = terms.map(matcher);
    const entries = pages.flatMap(({ page, uri, sections }) =>
      sections.map(([heading, anchor, text], index) => ({ page, uri, heading, anchor, text, top: index === 0 })));
    const hits = entries.map((e) => patterns.map((p) => [count(e.page, p), count(e.heading, p), count(e.text, p)]));
    const rarity = patterns.map((_, i) => Math.log(1 + entries.length / (1 + hits.filter((h) => h[i].some(Boolean)).length)));
    return entries
      .map((entry, k) => {
        const found = hits[k].filter((h) => h[1] || h[2]).length;
        const points = hits[k].map(([page, heading, text], i) =>
          rarity[i] * (4 * Math.min(page, 1) + 9 * Math.min(heading, 1) + Math.min(text, 4)));
        const whole = points.reduce((a, b) => a + b, 0) * (hits[k].filter((h) => h.some(Boolean)).length / terms.length) ** 2;
        return { ...entry, score: found ? whole * weight(entry) : 0 };
      })
      .filter((entry) => entry.score > 0)
      .sort((a, b) => b.score - a.score);
  };

  const marked = (text, patterns) => {
    const all = new RegExp(patterns.map((p) => p.source).join("|"), "giu");
    const at = Math.max(0, text.search(all));
    const from = Math.max(0, at - AROUND), part = text.slice(from, at + 2 * AROUND);
    const span = document.createElement("span");
    let last = 0;
    span.append(from ? "… " : "");
    for (const hit of part.matchAll(all)) {
      if (!hit[0]) continue;
      const mark = document.createElement("mark");
      mark.textContent = hit[0];
      span.append(part.slice(last, hit.index), mark);
      last = hit.index + hit[0].length;
    }
    span.append(part.slice(last), from + part.length < text.length ? " …" : "");
    return span;
  };

  const perform = (query) => {
    const { pages, synonyms } = window.nclibSections;
    const terms = termsOf(query, synonyms), patterns = terms.map(matcher);
    const results = terms.length ? ranked(pages, terms, query) : [];
    const box = document.getElementById("search-results");
    const status = document.createElement("p");
    status.setAttribute("role", "status");
    const more = results.length > SHOWN ? `, the best ${SHOWN} of them below` : "";
    status.textContent = results.length ? `${results.length} sections found${more}.` : `Nothing found for "${query}".`;
    const list = document.createElement("ol");
    list.className = "nc-found";
    for (const { page, uri, heading, anchor, text, top } of results.slice(0, SHOWN)) {
      const item = document.createElement("li"), link = document.createElement("a"), excerpt = document.createElement("p");
      link.href = `${uri}${top ? "" : `#${anchor}`}`;
      link.textContent = top ? page : heading;
      item.append(link, top ? "" : ` in ${page}`);
      excerpt.append(marked(text, patterns));
      item.append(excerpt);
      list.append(item);
    }
    box.replaceChildren(status, list);
  };

  if (window.nclibSections && typeof Search !== "undefined") Search.performSearch = perform;
})();
