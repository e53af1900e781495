/* Pictures of class nc-play: sliders and lists that show another value. The values stand beside each picture
   as JSON, so nothing is requested; without this script a picture shows one value. */
"use strict";

(() => {
  const text = (element, words) => { element.textContent = words; return element; };
  const item = (words, right) => {
    const line = text(document.createElement("li"), words);
    line.className = right ? "nc-right" : "nc-wrong";
    return line;
  };

  /* Each kind returns a function that draws the picture for the positions of its controls. */
  const kinds = {
    noise: (play, data) => {
      const lists = [...play.querySelectorAll(".nc-pictures ul")];
      return ({ rate, protocol }) => {
        const given = data.given[protocol][rate];
        lists.forEach((list, i) => list.replaceChildren(
          ...data.captions.flatMap((words, c) => given[c] === i ? [item(words, data.own[c] === i)] : [])));
        return data.said[protocol][rate];
      };
    },
    plan: (play, data) => {
      const cells = [...play.querySelectorAll("td")];
      const pictures = [...play.querySelectorAll("tbody th img")];
      const captions = [...play.querySelectorAll("ol li")];
      const pair = play.querySelector(".nc-pair");
      pair.hidden = false;
      play.querySelector("tbody").addEventListener("pointerover", ({ target }) => {
        const k = cells.indexOf(target.closest("td"));
        if (k < 0) return;
        const [row, column] = [Math.floor(k / captions.length), k % captions.length];
        const img = pictures[row].cloneNode();
        const mass = parseInt(cells[k].style.getPropertyValue("--nc-mass"), 10);
        const kind = row === column ? "the given pair, forbidden" : cells[k].className ? "a true partner" : "not a partner";
        pair.replaceChildren(img, `${captions[column].textContent} (${kind}; ${mass}% of the picture's mass)`);
      });
      return ({ network, lam, rho }) => {
        data.plans[network][lam][rho].split(" ").forEach((mass, k) => cells[k].style.setProperty("--nc-mass", `${mass}%`));
        return data.said[network][lam][rho];
      };
    },
    search: (play, data) => {
      const rows = [...play.querySelectorAll("tbody tr")];
      const said = play.querySelector(".nc-play-said").textContent;
      return ({ query }) => {
        rows.forEach((row, m) => {
          text(row.querySelector("small"), data.places[m][query]);
          row.querySelectorAll("img").forEach((img, k) => {
            const found = data.found[m][query][k];
            Object.assign(img, { src: data.pictures[found], alt: data.alts[found] });
            img.classList.toggle("nc-own-picture", found === data.own[query]);
          });
        });
        return said;
      };
    },
  };
  const values = { rate: "rates", lam: "lams", rho: "rhos" }; // control -> list of its values

  const start = (play) => {
    const data = JSON.parse(play.querySelector("script").textContent);
    const draw = kinds[play.dataset.play](play, data);
    const tools = play.querySelector(".nc-tools");
    const controls = [...tools.querySelectorAll("input, select")];
    tools.hidden = false;
    tools.addEventListener("input", () => {
      const at = Object.fromEntries(controls.map((control) => [control.name, Number(control.value)]));
      controls.filter((control) => control.type === "range").forEach((control) => {
        const value = String(data[values[control.name]][at[control.name]]);
        control.setAttribute("aria-valuetext", value);
        text(control.parentElement.querySelector("output"), value);
      });
      text(play.querySelector(".nc-play-said"), draw(at));
    });
  };

  const all = () => document.querySelectorAll(".nc-play").forEach(start);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", all);
  else all();
})();
