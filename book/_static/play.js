/* Pictures of class nc-play: sliders, lists and games. The values stand beside each picture as JSON, so nothing
   is requested; without this script a picture shows one value. */
"use strict";

(() => {
  const text = (element, words) => { element.textContent = words; return element; };
  const percent = (share) => `${Math.round(100 * share)}%`;
  const item = (words, right) => {
    const line = text(document.createElement("li"), words);
    line.className = right ? "nc-right" : "nc-wrong";
    return line;
  };

  /* Entropic partial transport with a forbidden diagonal: a dummy row and column of cost 0 take what stays, the
     corner where they meet is forbidden, and potentials are found in the log domain while the regularisation
     falls to its value. Returns the plan, times the number of rows. */
  const partial = (cost, rho, reg) => {
    const n = cost.length;
    const sums = cost.map(() => Math.log(1 / n)).concat(Math.log(1 - rho));
    const entry = (i, j) => (i === j ? Infinity : i < n && j < n ? cost[i][j] : 0);
    const C = sums.map((_, i) => sums.map((_, j) => entry(i, j)));
    const f = sums.map(() => 0), g = sums.map(() => 0);
    const soft = (values, lam) => { // -lam log sum exp(-values / lam)
      const least = Math.min(...values);
      return least - lam * Math.log(values.reduce((sum, v) => sum + Math.exp((least - v) / lam), 0));
    };
    const pass = (lam) => {
      let moved = 0;
      sums.forEach((s, i) => {
        const next = lam * s + soft(C[i].map((c, j) => c - g[j]), lam);
        moved = Math.max(moved, Math.abs(next - f[i]) / lam);
        f[i] = next;
      });
      sums.forEach((s, j) => { g[j] = lam * s + soft(C.map((row, i) => row[j] - f[i]), lam); });
      return moved;
    };
    for (let lam = Math.max(reg, 0.5); ; lam = Math.max(reg, lam / 2)) {
      for (let k = 0; k < 3000 && pass(lam) > 1e-4; k += 1);
      if (lam === reg) break;
    }
    return cost.map((row, i) => row.map((_, j) => n * Math.exp((f[i] + g[j] - C[i][j]) / reg)));
  };

  /* What a plan does, in words: as ncbook.play says it of the first one. */
  const planSaid = (x, partner) => {
    const total = (values) => values.reduce((sum, v) => sum + v, 0);
    const moved = total(x.map(total));
    const right = total(x.map((row, i) => row[partner[i]] ?? 0));
    const shares = x.filter((row) => total(row) > 1e-6).map((row) => row.map((v) => v / total(row)));
    const entropy = total(shares.map((row) => -total(row.map((v) => (v > 0 ? v * Math.log(v) : 0)))));
    const chance = partner.filter((j) => j >= 0).length / (x.length * (x.length - 1));
    return `${percent(moved / x.length)} of the mass moves, ${percent(right / moved)} of it to true partners (by chance `
      + `${percent(chance)}). A row's target is spread over ${Math.exp(entropy / shares.length).toFixed(1)} captions.`;
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
      const boxes = [...play.querySelectorAll("tbody input")];
      const pair = play.querySelector(".nc-pair");
      pair.hidden = false;
      boxes.forEach((box) => {
        box.hidden = false;
        box.addEventListener("input", () => play.querySelector(".nc-tools").dispatchEvent(new Event("input")));
      });
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
        const rows = boxes.flatMap((box, i) => (box.checked ? [i] : []));
        captions.forEach((caption, i) => caption.classList.toggle("nc-out", !rows.includes(i)));
        cells.forEach((cell) => cell.style.setProperty("--nc-mass", "0%"));
        if (rows.length < 2) return "A plan needs two pairs.";
        const cost = rows.map((i) => rows.map((j) => data.costs[network][i][j]));
        const x = partial(cost, data.rhos[rho], data.lams[lam]);
        x.forEach((row, i) => row.forEach((mass, j) => cells[rows[i] * captions.length + rows[j]].style
          .setProperty("--nc-mass", percent(mass))));
        return planSaid(x, rows.map((i) => rows.indexOf(data.partner[i])));
      };
    },
    search: (play, data) => {
      const rows = [...play.querySelectorAll("tbody tr")];
      const said = play.querySelector(".nc-play-said").textContent;
      return ({ query, rate }) => {
        rows.forEach((row, place) => {
          const m = data.rates.length && place ? rate : place;
          text(row.querySelector("th span"), data.names[m]);
          text(row.querySelector("small"), data.places[m][query]);
          row.querySelectorAll("img").forEach((img, k) => {
            const found = data.found[m][query][k];
            Object.assign(img, { src: data.pictures[found], alt: data.alts[found] });
            img.classList.toggle("nc-own-picture", found === data.own[query]);
          });
        });
        return data.said[rate] ?? said;
      };
    },
    guess: (play, data) => {
      const cards = [...play.querySelectorAll(".nc-cards button")];
      const [check, next] = play.querySelectorAll("p button");
      const score = play.querySelector("output");
      const sum = { mine: 0, audit: 0, of: 0 };
      let round = 0;
      const chosen = () => cards.filter((card) => card.getAttribute("aria-pressed") === "true");
      const deal = () => {
        const game = data.games[round];
        cards.forEach((card, k) => {
          card.querySelector("img").src = game.pairs[k][0];
          text(card.querySelector("span"), game.pairs[k][1]);
          text(card.querySelector("b"), "");
          card.className = "";
          card.disabled = false;
          card.setAttribute("aria-pressed", "false");
        });
        check.disabled = true;
        next.hidden = true;
        text(play.querySelector(".nc-play-said"), data.said);
      };
      cards.forEach((card) => card.addEventListener("click", () => {
        const on = card.getAttribute("aria-pressed") === "true";
        if (on || chosen().length < data.n) card.setAttribute("aria-pressed", String(!on));
        check.disabled = chosen().length !== data.n;
      }));
      check.addEventListener("click", () => {
        const game = data.games[round];
        const mine = chosen().filter((card) => game.wrong[cards.indexOf(card)]).length;
        const audit = game.audit.filter((k) => game.wrong[k]).length;
        cards.forEach((card, k) => {
          card.disabled = true;
          card.className = game.wrong[k] ? "nc-wrong" : "nc-right";
          text(card.querySelector("b"), game.audit.includes(k) ? "the audit's choice" : "");
        });
        sum.mine += mine; sum.audit += audit; sum.of += data.n;
        check.disabled = true;
        next.hidden = round + 1 === data.games.length;
        text(play.querySelector(".nc-play-said"), `You found ${mine} of ${data.n}, the audit ${audit}.`);
        text(score, `You ${sum.mine}, the audit ${sum.audit}, of ${sum.of}`);
      });
      next.addEventListener("click", () => { round += 1; deal(); });
      play.querySelectorAll(".nc-tools").forEach((tools) => { tools.hidden = false; });
      deal();
      return () => data.said;
    },
    gradient: (play, data) => {
      const svg = play.querySelector("svg");
      const line = svg.querySelector(".nc-pair-line");
      const dots = [...svg.querySelectorAll("circle")];
      const slider = play.querySelector("input");
      const draw = ({ p }) => {
        line.setAttribute("x1", 4 * p);
        line.setAttribute("x2", 4 * p);
        const said = Object.entries(data.pulls).map(([name, pull], k) => {
          dots[k].setAttribute("cx", 4 * p);
          dots[k].setAttribute("cy", 200 - (200 * pull[p]) / data.top);
          return `${name} ${pull[p].toFixed(2)}`;
        });
        return `Pull: ${said.join("; ")}.`;
      };
      const drag = (event) => {
        const box = svg.getBoundingClientRect();
        const x = ((event.clientX - box.left) / box.width) * 460 - 46;
        slider.value = Math.max(0, Math.min(100, x / 4));
        slider.dispatchEvent(new Event("input", { bubbles: true }));
      };
      svg.addEventListener("pointerdown", (event) => { svg.setPointerCapture(event.pointerId); drag(event); });
      svg.addEventListener("pointermove", (event) => { if (event.buttons) drag(event); });
      draw({ p: Number(slider.value) });
      return draw;
    },
  };
  const values = { rate: "rates", lam: "lams", rho: "rhos", p: "ps" }; // control -> list of its values

  const start = (play) => {
    const data = JSON.parse(play.querySelector("script").textContent);
    const draw = kinds[play.dataset.play](play, data);
    const tools = play.querySelector(".nc-tools");
    const controls = [...tools.querySelectorAll("input, select")];
    tools.hidden = !controls.length;
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

  /* Questions at the end of a page: an answer opens what is said about it, and the right ones are counted. */
  const ask = (quiz) => {
    const questions = [...quiz.querySelectorAll("fieldset")];
    quiz.addEventListener("change", ({ target }) => {
      const question = target.closest("fieldset");
      question.querySelectorAll("input").forEach((input) => { input.disabled = true; });
      question.className = target.hasAttribute("data-right") ? "nc-right" : "nc-wrong";
      question.querySelector("details").open = true;
      const right = questions.filter((one) => one.className === "nc-right").length;
      const done = questions.filter((one) => one.className).length;
      text(quiz.querySelector("output"), `${right} of ${done} right${done < questions.length ? " so far" : ""}.`);
    });
  };

  const all = () => {
    document.querySelectorAll(".nc-play").forEach(start);
    document.querySelectorAll(".nc-quiz").forEach(ask);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", all);
  else all();
})();
