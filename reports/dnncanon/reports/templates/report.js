"use strict";
// What the report can do with a script: theme, copying, sorting, filtering, plots.
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  const byId = (id) => document.getElementById(id);

  // --- theme: the reader's choice, else the system's ---
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("dnncanon-theme"); } catch { return null; } };
  const store = (theme) => { try { localStorage.setItem("dnncanon-theme", theme); } catch { /* private window */ } };
  const isDark = () => (root.dataset.theme || (systemDark.matches ? "dark" : "light")) === "dark";
  if (stored()) root.dataset.theme = stored();
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    store(root.dataset.theme);
    drawPlots();
  });
  systemDark.addEventListener("change", () => drawPlots());

  // --- copying ---
  const copyText = async (text, code) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      if (text !== code.textContent) return false;
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      return document.execCommand("copy");
    }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const label = button.firstChild;
    const code = button.parentElement.querySelector("code");
    const copied = await copyText(button.dataset.copy || code.textContent, code);
    label.textContent = copied ? "Copied" : "Not copied";
    setTimeout(() => { label.textContent = "Copy"; }, 1500);
  });

  // --- sorting ---
  const sortKey = (row, index, numeric) => {
    const cell = row.cells[index];
    if (!numeric) return cell.textContent.trim();
    const value = cell.dataset.value;
    return value === "" || value === undefined ? -1 : value === "inf" ? Infinity : Number(value);
  };
  const sortBy = (table, head) => {
    const index = head.cellIndex;
    const numeric = "number" in head.dataset;
    const was = head.getAttribute("aria-sort");
    const descending = was ? was === "ascending" : numeric;
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    // In a paired table every entry is a table body of two rows, else it is a row.
    const paired = table.classList.contains("paired");
    const entries = paired ? [...table.tBodies] : [...table.tBodies[0].rows];
    const keyed = entries.map((entry) => [sortKey(paired ? entry.rows[0] : entry, index, numeric), entry]);
    const compare = numeric ? (a, b) => (a < b ? -1 : a > b ? 1 : 0) : (a, b) => a.localeCompare(b);
    keyed.sort((a, b) => (descending ? -1 : 1) * compare(a[0], b[0]));
    (paired ? table : table.tBodies[0]).append(...keyed.map(([, entry]) => entry));
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const head of table.tHead.rows[0].cells) {
      if ("fixed" in head.dataset) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sortBy(table, head));
    }
  }

  // --- filtering: every word must begin a word of the case, so float16 does not find bfloat16 ---
  const setUpFilters = (caseTable) => {
    const caseBodies = [...caseTable.tBodies].map((body) => ({
      body,
      verdict: body.dataset.verdict,
      text: [...body.querySelectorAll("td")].map((cell) => cell.textContent).join(" ").toLowerCase(),
    }));
    const escaped = (word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const filterCases = () => {
      const verdict = byId("filter-verdict").value;
      const words = byId("filter-words").value.toLowerCase().split(/\s+/).filter(Boolean);
      const tests = words.map((word) => new RegExp("(?<![a-z0-9_])" + escaped(word)));
      let shown = 0;
      for (const entry of caseBodies) {
        const fits = (!verdict || entry.verdict === verdict) && tests.every((test) => test.test(entry.text));
        entry.body.hidden = !fits;
        if (fits) shown += 1;
      }
      byId("filter-state").textContent = `${shown.toLocaleString("en")} of ${caseBodies.length.toLocaleString("en")} shown`;
    };
    byId("filter-verdict").addEventListener("input", filterCases);
    byId("filter-words").addEventListener("input", filterCases);
    for (const link of document.querySelectorAll("a[data-filter]")) {
      link.addEventListener("click", () => {
        byId("filter-verdict").value = "";
        byId("filter-words").value = link.dataset.filter;
        filterCases();
      });
    }
    filterCases();
  };
  if (byId("case-table")) setUpFilters(byId("case-table"));

  // --- filtering the table of accuracy, by its lists or from a figure of the overview ---
  const setUpAccuracy = (table) => {
    const bodies = [...table.tBodies];
    const lists = [...document.querySelectorAll("select[id^='accuracy-']")];
    const filterRows = () => {
      for (const body of bodies) {
        body.hidden = !lists.every((list) => !list.value || body.dataset[list.dataset.key] === list.value);
      }
      const shown = bodies.filter((body) => !body.hidden).length;
      byId("accuracy-state").textContent = `${shown.toLocaleString("en")} of ${bodies.length.toLocaleString("en")} shown`;
    };
    for (const list of lists) list.addEventListener("input", filterRows);
    for (const link of document.querySelectorAll("a[href='#accuracy-table']")) {
      link.addEventListener("click", () => {
        for (const list of lists) list.value = link.dataset[list.dataset.key];
        filterRows();
      });
    }
    filterRows();
  };
  if (byId("accuracy-table")) setUpAccuracy(byId("accuracy-table"));

  // --- plots ---
  const data = byId("plot-data") ? JSON.parse(byId("plot-data").textContent) : null;
  let plotly = null;

  const unpack = async (base64) => {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const loadPlotly = async () => {
    byId("plot-state").textContent = "Preparing the plots …";
    try {
      const script = document.createElement("script");
      script.textContent = await unpack(byId("plotly-packed").textContent);
      document.head.append(script);
      plotly = window.Plotly;
      byId("plot-state").textContent = "";
    } catch (error) {
      byId("plot-state").textContent = `This browser cannot draw the plots (${error.message}); the tables have the same figures.`;
    }
  };

  const FAILING = ["FAILED", "ERROR", "CRASHED", "TIMEOUT"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "star", "pentagon"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
  const color = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const style = (series) => {
    const index = data.series.indexOf(series);
    return { color: color(`series${index % 7}`), symbol: SYMBOLS[(index + Math.floor(index / 7)) % 7], dash: DASHES[index % 5] };
  };
  const axis = (title, more) => ({
    title: { text: title, standoff: 10 }, gridcolor: color("line"), zerolinecolor: color("quiet"),
    linecolor: color("line"), automargin: true, ...more,
  });
  // The buttons are named, because plotly's own choice has one that sends the chart to a server.
  const PLOT_CONFIG = {
    responsive: true, displaylogo: false, plotlyServerURL: "",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
  };
  const draw = (id, traces, xaxis, yaxis, more) => plotly.react(byId(id), traces, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: color("ink"), family: getComputedStyle(document.body).fontFamily, size: 12 },
    margin: { l: 64, r: 16, t: 16, b: 60 }, showlegend: true,
    modebar: { bgcolor: "rgba(0,0,0,0)", color: color("quiet"), activecolor: color("ink") },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hoverlabel: { bgcolor: color("panel"), bordercolor: color("line"), font: { color: color("ink") } },
    xaxis, yaxis, ...more,
  }, PLOT_CONFIG);
  const chosen = (entries) => {
    const primitive = byId("plot-primitive").value;
    return primitive ? entries.filter((entry) => entry.primitive === primitive) : entries;
  };
  const bySeries = (entries) => data.series
    .map((series) => [series, entries.filter((entry) => entry.series === series)])
    .filter(([, found]) => found.length);

  const drawPoints = () => {
    const traces = bySeries(chosen(data.points)).flatMap(([series, entries]) => {
      const points = entries.flatMap((entry) => entry.x.map((x, i) => ({
        x, y: entry.y[i], shown: [entry.line[i].replace(/</g, "&lt;"), entry.ratio[i], entry.verdict[i]],
      })));
      const fails = (point) => FAILING.includes(point.shown[2]);
      const { color: hue, symbol } = style(series);
      const trace = (some, marker, more) => ({
        type: "scatter", mode: "markers", name: series, legendgroup: series,
        x: some.map((point) => point.x), y: some.map((point) => point.y),
        customdata: some.map((point) => point.shown),
        hovertemplate: "%{customdata[2]}, |error|/bound %{customdata[1]}<br>%{customdata[0]}<extra></extra>",
        marker: { color: hue, line: { width: 0.5, color: color("paper") }, ...marker }, ...more,
      });
      return [
        trace(points.filter((point) => !fails(point)), { symbol, size: 7, opacity: 0.8 }),
        trace(points.filter(fails), { symbol: "x", size: 11 }, { showlegend: false }),
      ];
    });
    const bound = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: color("fail-ink"), width: 1.5, dash: "dash" } };
    const label = { xref: "paper", x: 1, xanchor: "right", y: 0, yref: "y", yanchor: "bottom", text: "bound (failing cases are drawn ×)", showarrow: false, font: { color: color("fail-ink") } };
    draw("plot-points", traces, axis("elements compared", { type: "log", dtick: 1 }), axis("|error| / bound", { type: "log", dtick: 1 }), { shapes: [bound], annotations: [label] });
  };

  const SHARES = Array.from({ length: 12 }, (_, power) => 10 ** -power);
  const percent = (share) => `${(100 * share).toLocaleString("en", { maximumSignificantDigits: 1 })} %`;
  const drawUlp = () => {
    const traces = bySeries(chosen(data.ulp)).map(([series, entries]) => {
      const { color: hue, symbol, dash } = style(series);
      const counts = data.bins.map((_, bin) => entries.reduce((sum, entry) => sum + (entry.counts[bin] || 0), 0));
      const total = counts.reduce((sum, count) => sum + count, 0);
      return {
        type: "scatter", mode: "lines+markers", name: series, x: data.bins,
        y: counts.map((count) => (count ? count / total : null)), connectgaps: false,
        customdata: counts, hovertemplate: "%{customdata:,} elements, share %{y:.3g}<extra>%{fullData.name}</extra>",
        line: { color: hue, dash, width: 2 }, marker: { color: hue, symbol, size: 8 },
      };
    });
    draw("plot-ulp", traces, axis("|error| in ULP of the output", { type: "category", categoryorder: "array", categoryarray: data.bins }), axis("share of elements", { type: "log", tickvals: SHARES, ticktext: SHARES.map(percent) }));
  };

  const drawBias = () => {
    const traces = bySeries(chosen(data.bias)).map(([series, entries]) => {
      const pick = (index) => entries.map((entry) => entry.box[index]);
      return {
        type: "box", name: series, x: entries.map((entry) => entry.primitive),
        lowerfence: pick(0), q1: pick(1), median: pick(2), q3: pick(3), upperfence: pick(4),
        line: { color: style(series).color, width: 1.5 },
      };
    });
    draw("plot-bias", traces, axis("", { type: "category", categoryorder: "array", categoryarray: data.primitives }), axis("bias, z score", {}), { boxmode: "group" });
  };

  const drawPlots = () => {
    if (!plotly) return;
    drawPoints();
    drawUlp();
    drawBias();
  };

  if (data) {
    byId("plot-primitive").addEventListener("input", drawPlots);
    const watcher = new IntersectionObserver(async (entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      watcher.disconnect();
      await loadPlotly();
      drawPlots();
    }, { rootMargin: "600px" });
    watcher.observe(document.querySelector(".plots"));
  }
})();
