/* Sections of the side bar that fold: that of the page is open, on the landing page all are. The landing page has
   a short name. Without this script all are open. */
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const bar = document.querySelector("nav.bd-links");
  const home = bar?.querySelector(".bd-sidenav__home-link a");
  if (home) home.textContent = "Start";
  const inside = bar?.querySelector("p.caption ~ ul li.current");
  for (const caption of bar?.querySelectorAll("p.caption") ?? []) {
    const list = caption.nextElementSibling;
    if (list?.tagName !== "UL") continue;
    const section = document.createElement("details");
    const head = document.createElement("summary");
    section.className = "nc-fold"; // the theme has folds of its own
    section.open = inside ? list.contains(inside) : true;
    caption.replaceWith(section);
    head.append(caption);
    section.append(head, list);
  }
});
