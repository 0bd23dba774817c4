"use strict";
{
  const group = new Intl.NumberFormat("en");
  const bytes = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = 0;
    while (value >= 1024 && unit + 1 < units.length) { value /= 1024; unit += 1; }
    return `${unit ? Number(value.toFixed(2)) : value} ${units[unit]}`;
  };

  // Light, dark, or as the system has it. Some browsers keep nothing for a file.
  const button = document.getElementById("theme");
  const themes = ["system", "light", "dark"];
  const keep = (write) => { try { return write(localStorage); } catch { return null; } };
  let theme = keep((store) => store.getItem("concertina-theme"));
  const show = () => {
    if (!themes.includes(theme)) theme = "system";
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    keep((store) => store.setItem("concertina-theme", theme));
    show();
  });
  show();

  // The one of a figure's two drawings that can be seen.
  const drawing = (plot) => [...plot.querySelectorAll("svg")].find((svg) => svg.getClientRects().length > 0);
  const inside = (svg, event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    return { x: (event.clientX - box.left) * scale, y: (event.clientY - box.top) * scale };
  };

  // Each kind of chart: how many values it has, which one lies at a place, how the next is found, and how one is shown.
  const memory = (figure, plot) => {
    const [events, ...rows] = JSON.parse(figure.dataset.values);
    const names = [...figure.querySelectorAll(".keys li span")].map((name) => name.textContent);
    const scale = (svg) => svg.querySelector("[data-plot]").dataset.plot.split(" ").map(Number);
    return {
      count: events.length,
      at: (svg, { x }) => {
        const [left, right, last] = scale(svg);
        const wanted = ((x - left) / (right - left)) * last;
        let low = 0, high = events.length - 1;
        while (low < high) {
          const middle = (low + high) >> 1;
          if (events[middle] < wanted) low = middle + 1; else high = middle;
        }
        return low > 0 && wanted - events[low - 1] < events[low] - wanted ? low - 1 : low;
      },
      down: 10,
      show: (index) => {
        for (const svg of plot.querySelectorAll("svg")) {
          const [left, right, last] = scale(svg);
          const x = left + (last ? events[index] / last : 0) * (right - left);
          const cursor = svg.querySelector(".cursor");
          cursor.setAttribute("transform", `translate(${x} 0)`);
          cursor.classList.add("on");
        }
        const values = rows.map((row, at) => `${names[at]}: ${row[index] === null ? "stopped" : bytes(row[index])}`);
        return `event ${group.format(events[index])} · ${values.join(" · ")}`;
      },
    };
  };

  const bars = (figure, plot) => {
    const hits = (svg) => [...svg.querySelectorAll(".hit")];
    return {
      count: hits(plot.querySelector("svg")).length,
      at: (svg, place, event) => hits(svg).indexOf(event.target.closest(".hit")),
      down: 1,
      show: (index) => {
        for (const svg of plot.querySelectorAll("svg")) {
          hits(svg).forEach((hit, at) => hit.classList.toggle("on", at === index));
        }
        return hits(plot.querySelector("svg"))[index].dataset.text;
      },
    };
  };

  const map = (figure, plot) => {
    const maps = JSON.parse(figure.dataset.values);
    const place = (svg, of) => {
      const data = svg.querySelectorAll("[data-map]")[of].dataset;
      const [top, columns, pitch] = data.place.split(" ").map(Number);
      return { top, columns, pitch, name: data.name, page: Number(data.page) };
    };
    const starts = [0];
    for (const cells of maps) starts.push(starts[starts.length - 1] + cells.length);
    const find = (index) => {
      const of = starts.findLastIndex((start, at) => at < maps.length && start <= index);
      return { of, cell: index - starts[of] };
    };
    return {
      count: starts[maps.length],
      at: (svg, { x, y }) => {
        for (let of = 0; of < maps.length; of += 1) {
          const { top, columns, pitch } = place(svg, of);
          const [column, row] = [Math.floor(x / pitch), Math.floor((y - top) / pitch)];
          const cell = row * columns + column;
          if (column >= 0 && column < columns && row >= 0 && cell < maps[of].length) return starts[of] + cell;
        }
        return -1;
      },
      down: (svg, index) => place(svg, find(index).of).columns,
      show: (index) => {
        const { of, cell } = find(index);
        for (const svg of plot.querySelectorAll("svg")) {
          const { top, columns, pitch } = place(svg, of);
          const cursor = svg.querySelector(".cursor");
          const [x, y] = [(cell % columns) * pitch, top + Math.floor(cell / columns) * pitch];
          cursor.setAttribute("transform", `translate(${x} ${y})`);
          cursor.classList.add("on");
        }
        const { name, page } = place(plot.querySelector("svg"), of);
        const [kind, pages, idle, live] = maps[of][cell];
        const many = (number) => `${group.format(number)} ${number === 1 ? "page" : "pages"}`;
        const what = [
          () => `${many(pages)} held, ${group.format(idle)} of them idle · ${bytes(live)} of ${bytes(pages * page)} live`,
          () => `a run of ${many(pages)} that are stale`,
          () => `a run of ${many(pages)} that are not mapped`,
        ];
        return `${name} · ${what[kind]()}`;
      },
    };
  };

  const kinds = { memory, mapped: bars, "min-capacity": bars, calls: bars, map };
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const plot = figure.querySelector(".plot");
    const readout = figure.querySelector(".readout");
    const chart = kinds[figure.dataset.chart](figure, plot);
    let now = -1;
    const go = (index) => {
      if (index < 0 || index >= chart.count) return;
      now = index;
      readout.textContent = chart.show(index);
      readout.classList.add("on");
    };
    const point = (event) => {
      const svg = drawing(plot);
      if (svg) go(chart.at(svg, inside(svg, event), event));
    };
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    plot.addEventListener("keydown", (event) => {
      const down = typeof chart.down === "number" ? chart.down : chart.down(drawing(plot), Math.max(now, 0));
      const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: down, ArrowUp: -down, Home: -Infinity, End: Infinity };
      const step = steps[event.key];
      if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      go(now < 0 && step !== Infinity ? 0 : Math.min(Math.max(now + step, 0), chart.count - 1));
    });
  }
}
