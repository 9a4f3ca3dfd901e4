"use strict";
// Draws what was used and granted over time, of each section of class `chart`; what is null is a gap.
(() => {
  const UNITS = { memory: "GiB", cores: "% of a card" };
  const LINES = { used: { color: "#0072b2", dash: [] }, granted: { color: "#d55e00", dash: [6, 3] } };
  const HEIGHT = 180, POINTS_UP_TO = 3;
  const iso = (t) => new Date(t * 1000).toISOString();
  const minute = (t) => iso(t).slice(5, 16).replace("T", " ");
  // The day stands where it begins, and alone where ticks are days.
  const ticks = (_, splits, axis, space, step) => splits.map((t, n) => {
    const day = iso(t).slice(5, 10), other = n === 0 || iso(splits[n - 1]).slice(5, 10) !== day;
    return step >= 86400 ? day : iso(t).slice(11, 16) + (other ? `\n${day}` : "");
  });
  const element = (name, text, given = {}) => Object.assign(document.createElement(name), { textContent: text }, given);
  const table = (data) => {
    const columns = Object.keys(UNITS).flatMap((kind) => Object.keys(LINES).map((line) => [kind, line]));
    const head = element("tr", ""), rows = data.at.map((t, n) => {
      const row = element("tr", "");
      row.append(element("th", minute(t), { scope: "row" }), ...columns.map(([kind, line]) => element("td", data[kind][line][n] ?? "?", { className: "number" })));
      return row;
    });
    head.append(element("th", "time (UTC)", { scope: "col" }), ...columns.map(([kind, line]) => element("th", `${kind} ${line}, ${UNITS[kind]}`, { scope: "col" })));
    const box = element("div", "", { className: "scroll", tabIndex: 0 }), shown = element("table", ""), thead = element("thead", ""), tbody = element("tbody", "");
    box.setAttribute("role", "region"); box.setAttribute("aria-label", "Used and granted, table");
    thead.append(head); tbody.append(...rows.reverse()); shown.append(thead, tbody); box.append(shown);
    return box;
  };
  let drawn = [];
  const draw = (section, data) => {
    const css = getComputedStyle(document.documentElement), line = css.getPropertyValue("--pale").trim();
    const axis = { stroke: css.getPropertyValue("--fg").trim(), grid: { stroke: line }, ticks: { stroke: line } };
    const sync = uPlot.sync("time"), status = section.querySelector("[role=status]");
    const measured = Object.keys(UNITS).some((kind) => data[kind].used.some((value) => value !== null));
    status.textContent = measured ? "" : "? use was not measured in this window";
    const open = Boolean(section.querySelector("details")?.open);
    const pictures = element("div", "", { className: "charts" }), details = element("details", "");
    pictures.setAttribute("aria-hidden", "true");
    section.replaceChildren(...section.querySelectorAll("h2, [role=status]"), pictures, details);
    details.append(element("summary", "the same numbers as a table"));
    details.addEventListener("toggle", () => { if (details.children.length < 2) details.append(table(data)); });
    details.open = open;
    // All boxes stand before the first is measured: one alone would be as wide as the section.
    const boxes = Object.keys(UNITS).map(() => pictures.appendChild(element("div", "")));
    Object.entries(UNITS).forEach(([kind, unit], place) => {
      const box = boxes[place], series = Object.entries(LINES).map(([name, { color, dash }]) => {
        const values = data[kind][name].filter((value) => value !== null);
        return { label: `${kind} ${name}, ${unit}`, stroke: color, dash, width: 2, points: { show: values.length < POINTS_UP_TO }, value: (_, v) => v ?? "?" };
      });
      drawn.push(new uPlot({
        width: Math.max(280, box.clientWidth - 8), height: HEIGHT, cursor: { sync: { key: sync.key } },
        tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "Etc/UTC"),
        scales: { y: { range: (_, min, max) => [0, Math.max(1, max)] } },
        axes: [{ ...axis, values: ticks }, { ...axis, size: 60 }],
        series: [{ value: (_, t) => t === null ? "–" : minute(t) }, ...series],
      }, [data.at, ...Object.keys(LINES).map((name) => data[kind][name])], box));
    });
  };
  const load = async () => {
    for (const one of drawn) one.destroy();
    drawn = [];
    for (const section of document.querySelectorAll(".chart")) {
      const status = section.querySelector("[role=status]");
      try {
        const answer = await fetch(section.dataset.src);
        if (!answer.ok) throw new Error(String(answer.status));
        draw(section, await answer.json());
      } catch (error) {
        status.textContent = `? Could not read this chart (${error.message})`;
      }
    }
  };
  // A page that loads itself again keeps its chart (hx-preserve); only a new minute draws it again.
  document.addEventListener("hami:themed", load);
  setInterval(() => { if (!document.hidden && document.body.dataset.live === "1") load(); }, 60000);
  load();
})();
