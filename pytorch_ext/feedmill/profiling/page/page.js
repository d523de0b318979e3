"use strict";
/*
 * Draws the charts of a report from the JSON next to them. The data of a run are bins of one or
 * more steps; the bins of the shown range are merged into at most MOST_COLUMNS columns.
 */
(() => {
const MOST_COLUMNS = 1000;
const LEAST_SHOWN = 8; /* bins */
const PERCENT = "%";
const LEFT = 62, RIGHT = 10;

/* ---- numbers as text ------------------------------------------------------------------------ */

const grouped = (number) => Math.round(number).toLocaleString("en-US");

function duration(us) {
    if (us >= 1e6) return `${(us / 1e6).toFixed(us >= 1e7 ? 1 : 2)} s`;
    const ms = us / 1e3;
    return ms === 0 ? "0 ms" : `${ms.toFixed(ms >= 100 ? 0 : ms >= 10 ? 1 : 2)} ms`;
}

/* A duration without trailing zeros, for an axis. */
function short(us) {
    return us >= 1e6 ? `${+(us / 1e6).toFixed(2)} s` : `${+(us / 1e3).toFixed(3)} ms`;
}

/* A time since the run's start; with tenths of a second if the range is below a minute. */
function clock(ms, range_ms = Infinity) {
    if (range_ms < 60000 && ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
    const seconds = Math.floor(ms / 1000), two = (n) => String(n).padStart(2, "0");
    const hours = Math.floor(seconds / 3600), minutes = Math.floor(seconds / 60) % 60;
    return `${hours ? `${hours}:${two(minutes)}` : minutes}:${two(seconds % 60)}`;
}

/* The smallest of 1, 2, 5, 10, 20 ... that is at least `least`. */
function round(least) {
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least * 0.9999);
}

/* ---- columns -------------------------------------------------------------------------------- */

/* Merges the bins from..to (exclusive) into at most `most` columns. */
function columnsOf(data, from, to, most) {
    const n = Math.max(1, Math.min(most, to - from)), columns = [];
    for (let c = 0; c < n; c++) {
        const a = from + Math.floor((c * (to - from)) / n);
        const b = from + Math.floor(((c + 1) * (to - from)) / n);
        columns.push(merge(data, a, b));
    }
    return columns;
}

function merge(data, a, b) {
    const first = a * data.bin_steps, end = Math.min(b * data.bin_steps, data.n_steps);
    const n = end - first, means = {};
    let total = 0;
    for (const name in data.sums) {
        let sum = 0;
        for (let i = a; i < b; i++) sum += data.sums[name][i];
        means[name] = sum / n;
        total += means[name];
    }
    let longest = 0, ready = 0, least = Infinity, worst = a;
    for (let i = a; i < b; i++) {
        longest = Math.max(longest, data.longest[i]);
        ready += data.ready[i];
        least = Math.min(least, data.least_ready[i]);
        if (data.worst.wait[i] > data.worst.wait[worst]) worst = i;
    }
    return { a, b, first, end, n, means, total, longest, ready: ready / n, least, worst };
}

/* ---- one run -------------------------------------------------------------------------------- */

class Charts {
    constructor(section) {
        this.data = JSON.parse(section.querySelector(".data").textContent);
        this.n_bins = this.data.longest.length;
        this.from = 0;
        this.to = this.n_bins;
        this.at = null; /* the column below the pointer */
        this.drag = null;
        this.waits_only = this.full_height = false;
        this.controls = section.querySelector(".controls");
        this.box = section.querySelector(".plots");
        this.make_controls();
        this.make_plots();
        this.make_pointer();
        new ResizeObserver(() => this.draw()).observe(this.box);
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    }

    /* -- controls -- */

    make_controls() {
        const button = (text, name, action) => {
            const one = document.createElement("button");
            one.type = "button";
            one.textContent = text;
            one.title = name;
            one.setAttribute("aria-label", name);
            one.addEventListener("click", action);
            this.controls.append(one);
            return one;
        };
        this.earlier = button("◀", "earlier steps", () => this.shift(-0.5));
        this.later = button("▶", "later steps", () => this.shift(0.5));
        this.closer = button("+", "zoom in", () => this.zoom(0.5));
        this.farther = button("−", "zoom out", () => this.zoom(2));
        this.whole = button("whole run", "show the whole run", () => this.show(0, this.n_bins));
        const box = (text, field) => {
            const label = document.createElement("label"), one = document.createElement("input");
            one.type = "checkbox";
            one.addEventListener("change", () => { this[field] = one.checked; this.draw(); });
            label.append(one, ` ${text}`);
            this.controls.append(label);
        };
        box("waits only", "waits_only");
        box("full height", "full_height");
        this.controls.hidden = false;
    }

    show(from, to) {
        const least = Math.min(LEAST_SHOWN, this.n_bins);
        const size = Math.max(least, Math.min(this.n_bins, Math.round(to - from)));
        this.from = Math.round(Math.max(0, Math.min(from, this.n_bins - size)));
        this.to = this.from + size;
        this.point(null);
        this.draw();
    }

    shift(share) {
        const by = (this.to - this.from) * share;
        this.show(this.from + by, this.to + by);
    }

    zoom(factor) {
        const size = this.to - this.from;
        const middle = this.at ? (this.at.a + this.at.b) / 2 : (this.from + this.to) / 2;
        this.show(middle - (size * factor) / 2, middle + (size * factor) / 2);
    }

    /* -- layout -- */

    make_plots() {
        const { system } = this.data;
        this.plots = [];
        this.add_plot("Step time", 250, (...args) => this.draw_steps(...args));
        this.scale = document.createElement("p");
        this.scale.className = "scale";
        this.box.append(this.scale);
        if (this.data.knows_ready) {
            this.add_plot("Ready batches at the request", 100,
                (...args) => this.draw_ready(...args), [["mean", ""], ["minimum", "two"]]);
        }
        const lines = (title, unit, ...series) => {
            const known = series.filter(([name]) => system[name]);
            if (!known.length) return;
            const keys = known.map(([, label], i) => [label, i ? "two" : ""]);
            this.add_plot(`${title}, ${unit}`, 90,
                (context, plot) => this.draw_lines(context, plot, known, unit), keys);
            this.series.push(...known.map(([name, label]) => [name, `${title}: ${label}`, unit]));
        };
        this.series = [];
        lines("CPU", PERCENT, ["process_share", "this process, share of its CPUs"],
            ["host_cpu", "whole host"]);
        lines("GPU", PERCENT, ["gpu_busy", "busy"]);
        lines("Read", "MB/s", ["read", "by the loader"], ["device_read", "from block devices"]);
        lines("Memory", "MB", ["rss", "process (RSS)"]);
        lines("GPU memory", "MB", ["gpu_memory", "used"]);
        this.plots.at(-1).axis = this.plots[0].axis = true;
        this.tip = document.createElement("div");
        this.tip.className = "tip";
        this.tip.hidden = true;
        this.tip.setAttribute("role", "status");
        this.box.append(this.tip);
    }

    add_plot(title, height, draw, keys = []) {
        const frame = document.createElement("div"), head = document.createElement("h3");
        const canvas = document.createElement("canvas");
        frame.className = "plot";
        head.textContent = title;
        for (const [label, kind] of keys) {
            const key = document.createElement("span"), mark = document.createElement("i");
            mark.className = kind;
            key.append(mark, label);
            head.append(key);
        }
        canvas.setAttribute("role", "img");
        canvas.setAttribute("aria-label", title);
        frame.append(head, canvas);
        this.box.append(frame);
        this.plots.push({ canvas, height, draw, axis: false });
    }

    /* -- drawing -- */

    draw() {
        if (this.waiting) return;
        this.waiting = true;
        requestAnimationFrame(() => { this.waiting = false; this.draw_now(); });
    }

    draw_now() {
        const width = this.box.clientWidth;
        if (!width) return;
        this.style = getComputedStyle(document.documentElement);
        this.width = width - LEFT - RIGHT;
        this.columns = columnsOf(this.data, this.from, this.to,
            Math.min(MOST_COLUMNS, Math.max(1, Math.floor(this.width))));
        for (const plot of this.plots) {
            const ratio = window.devicePixelRatio || 1, height = plot.height + (plot.axis ? 40 : 6);
            plot.canvas.width = Math.round(width * ratio);
            plot.canvas.height = Math.round(height * ratio);
            plot.canvas.style.height = `${height}px`;
            const context = plot.canvas.getContext("2d");
            context.scale(ratio, ratio);
            context.font = `12px ${getComputedStyle(this.box).fontFamily}`;
            plot.draw(context, plot);
            if (plot.axis) this.draw_axis(context, plot);
            this.draw_marks(context, plot);
        }
        this.box.dataset.columns = this.columns.length;
        this.describe();
    }

    color(name) { return this.style.getPropertyValue(`--${name}`).trim(); }

    x(bin) { return LEFT + ((bin - this.from) / (this.to - this.from)) * this.width; }

    /* The same, aligned to a screen pixel, so that columns meet without a gap. */
    edge(bin) {
        const ratio = window.devicePixelRatio || 1;
        return Math.round(this.x(bin) * ratio) / ratio;
    }

    /* Draws the vertical axis. Returns the function that maps a value to a y coordinate. */
    draw_grid(context, plot, top, text, least_tick = 0) {
        const tick = Math.max(least_tick, round(top / (plot.height > 150 ? 5 : 2.5)));
        const y = (value) => 6 + (plot.height - 6) * (1 - value / top);
        context.fillStyle = this.color("faint");
        context.strokeStyle = this.color("line");
        context.lineWidth = 1;
        context.textAlign = "right";
        context.textBaseline = "middle";
        for (let value = 0; value <= top * 1.0001; value += tick) {
            const at = Math.round(y(value)) + 0.5;
            context.beginPath();
            context.moveTo(LEFT, at);
            context.lineTo(LEFT + this.width, at);
            context.stroke();
            context.fillText(text(value), LEFT - 6, at);
        }
        return y;
    }

    height_of(column) {
        return column.total - (this.waits_only ? column.means.compute_ns : 0);
    }

    /* The top of the step chart's scale, such that a few long steps do not flatten the others. */
    top_of_steps() {
        const heights = this.columns.map((column) => this.height_of(column)).sort((a, b) => a - b);
        const longest = this.waits_only ? [] : this.columns.map((column) => column.longest);
        const most = Math.max(...heights, ...longest);
        const usual = heights[Math.floor(0.95 * (heights.length - 1))];
        const cut = !this.full_height && usual > 0 && most > 3 * usual;
        return Math.max(1, cut ? 1.5 * usual : most);
    }

    draw_steps(context, plot) {
        const top = this.top_of_steps(), several = this.columns.some((column) => column.n > 1);
        const y = this.draw_grid(context, plot, top, short);
        const names = Object.keys(this.data.sums)
            .filter((name) => name !== "overhead_ns")
            .filter((name) => name !== "compute_ns" || !this.waits_only);
        names.push("overhead_ns");
        const colors = names.map((name) => this.color(this.data.css[name] || "overhead"));
        const faint = this.color("ink");
        this.n_cut = 0;
        this.highest = 0;
        for (const column of this.columns) {
            const left = this.edge(column.a), gap = this.edge(column.b) - left > 4 ? 1 : 0;
            const wide = this.edge(column.b) - left - gap;
            let below = 0;
            names.forEach((name, i) => {
                const value = column.means[name];
                if (!value) return;
                const low = y(Math.min(below, top)), high = y(Math.min(below + value, top));
                context.fillStyle = colors[i];
                context.fillRect(left, high, wide, low - high);
                below += value;
            });
            context.fillStyle = faint;
            if (below > top) {
                this.n_cut += 1;
                this.highest = Math.max(this.highest, below);
                triangle(context, left + wide / 2, 0);
            } else if (several && !this.waits_only && column.longest <= top) {
                context.fillRect(left + wide / 2 - 0.75, y(column.longest) - 0.75, 1.5, 1.5);
            }
        }
    }

    draw_ready(context, plot) {
        const ready = this.columns.map((column) => column.ready);
        const most = Math.max(1, this.data.slots || 0, ...ready);
        const y = this.draw_grid(context, plot, most, grouped, 1);
        context.fillStyle = this.color("series");
        context.globalAlpha = 0.25;
        for (const column of this.columns) {
            const left = this.edge(column.a);
            context.fillRect(left, y(column.ready), this.edge(column.b) - left,
                y(0) - y(column.ready));
        }
        context.globalAlpha = 1;
        const several = this.columns.some((column) => column.n > 1);
        plot.canvas.parentElement.querySelector(".two").parentElement.hidden = !several;
        const lines = [["ready", "series", []]];
        if (several) lines.push(["least", "series-two", [4, 3]]);
        for (const [field, color, dashes] of lines) {
            context.beginPath();
            for (const column of this.columns) {
                context.lineTo(this.x(column.a), y(column[field]));
                context.lineTo(this.x(column.b), y(column[field]));
            }
            this.stroke(context, color, dashes);
        }
    }

    stroke(context, color, dashes) {
        context.strokeStyle = this.color(color);
        context.lineWidth = 1.5;
        context.setLineDash(dashes);
        context.stroke();
        context.setLineDash([]);
    }

    draw_lines(context, plot, known, unit) {
        const { system, bin_steps } = this.data;
        const values = known.flatMap(([name]) => system[name].filter((value) => value !== null));
        const most = values.reduce((a, b) => Math.max(a, b), 0);
        const top = unit === PERCENT ? Math.max(100, most) : Math.max(1, 1.05 * most);
        const text = (value) => (top < 5 ? String(+value.toPrecision(2)) : grouped(value));
        const y = this.draw_grid(context, plot, top, text);
        context.save();
        context.beginPath();
        context.rect(LEFT, 0, this.width, plot.height + 2);
        context.clip();
        known.forEach(([name], i) => {
            let begun = false;
            context.beginPath();
            system[name].forEach((value, at) => {
                const left = this.x(system.at[at] / bin_steps);
                if (value === null) begun = false;
                else if (begun) context.lineTo(left, y(value));
                else { context.moveTo(left, y(value)); begun = true; }
            });
            this.stroke(context, i ? "series-two" : "series", i ? [4, 3] : []);
            if (system.at.length > 60) return;
            context.fillStyle = this.color(i ? "series-two" : "series");
            system[name].forEach((value, at) => {
                if (value === null) return;
                context.beginPath();
                context.arc(this.x(system.at[at] / bin_steps), y(value), 2.5, 0, 7);
                context.fill();
            });
        });
        context.restore();
    }

    /* Step numbers, and below them the time since the run's first request. */
    draw_axis(context, plot) {
        const { bin_steps, n_steps, begin_ms } = this.data;
        const first = this.from * bin_steps, end = Math.min(this.to * bin_steps, n_steps);
        const tick = Math.max(1, round((end - first) / Math.max(2, this.width / 90)));
        const range_ms = begin_ms[this.to - 1] - begin_ms[this.from];
        context.fillStyle = this.color("faint");
        context.textBaseline = "top";
        for (let at = Math.ceil(first / tick) * tick; at < end; at += tick) {
            const left = this.x(at / bin_steps);
            const at_end = left > LEFT + this.width - 30;
            context.textAlign = left < LEFT + 20 ? "left" : at_end ? "right" : "center";
            const time = clock(begin_ms[Math.floor(at / bin_steps)], range_ms);
            context.fillText(grouped(at), left, plot.height + 9);
            context.fillText(time, left, plot.height + 23);
        }
        context.textAlign = "right";
        context.fillText("step", LEFT - 6, plot.height + 9);
        context.fillText("time", LEFT - 6, plot.height + 23);
    }

    /* Draws the epochs' starts, the selection and the pointer. */
    draw_marks(context, plot) {
        const epochs = this.data.epochs.filter(([position]) => {
            const bin = position / this.data.bin_steps;
            return bin >= this.from && bin < this.to;
        });
        let free = -Infinity;
        if (epochs.length <= this.width / 12) for (const [position, epoch] of epochs) {
            const left = Math.round(this.x(position / this.data.bin_steps)) + 0.5;
            context.strokeStyle = this.color("faint");
            context.setLineDash([2, 3]);
            context.lineWidth = 1;
            line(context, left, 0, left, plot.height);
            context.setLineDash([]);
            if (plot !== this.plots[0] || left < free || left > LEFT + this.width - 60) continue;
            this.label(context, `epoch ${epoch}`, left + 4, 2);
            free = left + 70;
        }
        if (this.drag) {
            const [a, b] = [this.drag.from, this.drag.to].sort((x, y) => x - y);
            context.fillStyle = this.color("series");
            context.globalAlpha = 0.2;
            context.fillRect(a, 0, b - a, plot.height);
            context.globalAlpha = 1;
        } else if (this.at) {
            const left = this.x((this.at.a + this.at.b) / 2);
            context.strokeStyle = this.color("ink");
            context.lineWidth = 1;
            line(context, left, 0, left, plot.height);
        }
    }

    label(context, text, left, top) {
        context.textAlign = "left";
        context.textBaseline = "top";
        context.fillStyle = this.color("paper");
        context.globalAlpha = 0.75;
        context.fillRect(left - 2, top, context.measureText(text).width + 4, 14);
        context.globalAlpha = 1;
        context.fillStyle = this.color("ink");
        context.fillText(text, left, top + 1);
    }

    /* Writes below the chart what a column is, and what the chart cuts off. */
    describe() {
        const shown = this.columns.at(-1).end - this.columns[0].first, n = this.columns.length;
        const each = shown / n;
        const is_whole = each >= 10 || each % 1 === 0;
        const size = is_whole ? grouped(each) : `${Math.floor(each)} or ${Math.ceil(each)}`;
        const texts = [each > 1
            ? `${grouped(shown)} steps in ${grouped(n)} columns of ${size}: the height is their `
              + `mean${this.waits_only ? "" : ", the dot the longest of them"}`
            : `${grouped(shown)} steps, one per column`];
        if (this.n_cut) {
            texts.push(`▲ ${grouped(this.n_cut)} ${this.n_cut > 1 ? "columns are" : "column is"} `
                + `higher, up to ${duration(this.highest)} (“full height” shows them whole)`);
        }
        if (this.data.bin_steps > 1 && this.to - this.from <= LEAST_SHOWN) {
            texts.push(`the page has sums of ${this.data.bin_steps} steps, the log has every step`);
        }
        this.scale.textContent = `${texts.join("; ")}.`;
        const whole = this.from === 0 && this.to === this.n_bins;
        this.whole.disabled = this.farther.disabled = whole;
        this.closer.disabled = this.to - this.from <= LEAST_SHOWN;
        this.earlier.disabled = this.from === 0;
        this.later.disabled = this.to === this.n_bins;
    }

    /* -- the pointer -- */

    make_pointer() {
        this.box.tabIndex = 0;
        this.box.setAttribute("role", "group");
        this.box.setAttribute("aria-label",
            "Charts. Left and right arrow move between columns, plus and minus zoom, 0 shows all.");
        for (const { canvas } of this.plots) {
            canvas.addEventListener("pointerdown", (event) => {
                if (event.button) return;
                const at = this.inside(event.offsetX);
                this.drag = { from: at, to: at };
                canvas.setPointerCapture(event.pointerId);
            });
            canvas.addEventListener("pointermove", (event) => {
                if (this.drag) this.drag.to = this.inside(event.offsetX);
                this.point(this.column_at(event.offsetX), canvas);
            });
            canvas.addEventListener("pointerup", (event) => this.drop(event, canvas));
            canvas.addEventListener("pointercancel", () => { this.drag = null; this.draw(); });
            canvas.addEventListener("pointerleave", () => { if (!this.drag) this.point(null); });
        }
        this.box.addEventListener("keydown", (event) => this.key(event));
        this.box.addEventListener("blur", () => this.point(null));
    }

    inside(left) { return Math.max(LEFT, Math.min(left, LEFT + this.width)); }

    column_at(left) {
        const share = (this.inside(left) - LEFT) / this.width;
        const bin = this.from + share * (this.to - this.from);
        return this.columns.find((column) => bin < column.b) || this.columns.at(-1);
    }

    drop(event, canvas) {
        if (!this.drag) return;
        const [a, b] = [this.drag.from, this.drag.to].sort((x, y) => x - y);
        this.drag = null;
        if (b - a < 6) {
            this.point(this.column_at(event.offsetX), canvas);
            return;
        }
        this.show(this.column_at(a).a, this.column_at(b).b);
    }

    key(event) {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (by) {
            const n = this.columns.length;
            const at = this.at ? this.columns.indexOf(this.at) : by > 0 ? -1 : n;
            this.point(this.columns[Math.max(0, Math.min(n - 1, at + by))], this.plots[0].canvas);
        } else if (event.key === "+" || event.key === "=") this.zoom(0.5);
        else if (event.key === "-") this.zoom(2);
        else if (event.key === "0") this.show(0, this.n_bins);
        else if (event.key === "Escape") this.point(null);
        else return;
        event.preventDefault();
    }

    point(column, canvas) {
        this.at = column;
        this.tip.hidden = !column;
        if (column) {
            this.tip.replaceChildren(...this.tooltip(column));
            const left = this.x((column.a + column.b) / 2), wide = this.tip.offsetWidth;
            const right = left + 14 + wide <= this.box.clientWidth;
            this.tip.style.left = `${right ? left + 14 : Math.max(0, left - 14 - wide)}px`;
            this.tip.style.top = `${canvas.offsetTop + 22}px`;
        }
        this.draw();
    }

    /* The content of the tooltip. */
    tooltip(column) {
        const { data } = this, { worst } = data, at = column.worst;
        const place = `step ${grouped(worst.step[at])}, epoch ${worst.epoch[at]}, `
            + data.phases[worst.phase[at]];
        const head = document.createElement("b"), table = document.createElement("table");
        head.textContent = column.n > 1
            ? `${grouped(column.n)} steps from ${grouped(column.first)}, mean:`
            : place;
        for (const name in column.means) {
            if (!column.means[name]) continue;
            const row = table.insertRow(), label = row.insertCell(), value = row.insertCell();
            const swatch = document.createElement("span");
            swatch.className = "swatch";
            swatch.style.background = `var(--${data.css[name]})`;
            label.append(swatch, data.names[name]);
            value.textContent = duration(column.means[name]);
            value.className = "number";
        }
        const lines = [];
        const wait = worst.wait[at];
        if (column.n > 1 && wait) {
            lines.push(`longest wait: ${duration(wait)}, ${place}`);
        } else if (column.n === 1) lines.push(wait ? `waited ${duration(wait)}` : "did not wait");
        if (wait) {
            const cause = data.causes[worst.cause[at]];
            lines.push(`main cause: ${cause} (${duration(worst.cause_wait[at])})`);
            if (worst.index[at] >= 0) lines.push(`waited for sample: index ${worst.index[at]}`);
        }
        const mean = `mean ${column.ready.toFixed(1)}, minimum ${column.least}`;
        if (data.knows_ready) lines.push(`ready batches: ${column.n > 1 ? mean : column.ready}`);
        lines.push(`at ${clock(data.begin_ms[column.a], data.begin_ms.at(-1))}`);
        lines.push(...this.system_at(column));
        return [head, table, ...lines.map((text) => {
            const line = document.createElement("p");
            line.textContent = text;
            return line;
        })];
    }

    /* The process's and host's measurements nearest to a column. */
    system_at(column) {
        const { system } = this.data, { at } = system;
        if (!at) return [];
        const middle = (column.first + column.end) / 2;
        let nearest = 0;
        at.forEach((position, i) => {
            if (Math.abs(position - middle) < Math.abs(at[nearest] - middle)) nearest = i;
        });
        const value = (number, unit) => grouped(number) + (unit === PERCENT ? "" : " ") + unit;
        return this.series.filter(([name]) => system[name][nearest] !== null)
            .map(([name, label, unit]) => `${label} ${value(system[name][nearest], unit)}`);
    }
}

function line(context, left, top, right, bottom) {
    context.beginPath();
    context.moveTo(left, top);
    context.lineTo(right, bottom);
    context.stroke();
}

function triangle(context, left, top) {
    context.beginPath();
    context.moveTo(left, top);
    context.lineTo(left - 4, top + 6);
    context.lineTo(left + 4, top + 6);
    context.fill();
}

/* ---- start ---------------------------------------------------------------------------------- */

/* A run's charts are created when it is first opened: a page may have the runs of many ranks. */
for (const run of document.querySelectorAll("details.run")) {
    const section = run.querySelector(".charts");
    if (!section) continue;
    let charts = null;
    const make = () => { if (run.open && !charts) charts = new Charts(section); };
    run.addEventListener("toggle", make);
    make();
}
const open_named = () => {
    const named = location.hash && document.getElementById(location.hash.slice(1));
    if (named && named.matches("details.run")) named.open = true;
};
addEventListener("hashchange", open_named);
open_named();
})();
