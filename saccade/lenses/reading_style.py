"""How the page of a reading looks, and how the arrow keys move over its map."""

LIGHT = """--ink:#1c2430;--soft:#5b6675;--line:#dfe4ea;--paper:#fff;--panel:#f6f8fa;--lo:#eaf0f7;
--hi:#08336e;--bar:#bcd3ec;--add:#1a66b3;--drop:#a14a00;--here:#ffe08a;--here-ink:#3b2d00"""
DARK = """--ink:#e6ebf2;--soft:#98a4b3;--line:#2c3542;--paper:#12161c;--panel:#1a2029;--lo:#1f2835;
--hi:#ffd75e;--bar:#2f4a68;--add:#7fb8f0;--drop:#f0a35e;--here:#ffd75e;--here-ink:#241c00"""

# One hue from pale to dark (dark mode: from dim to bright), so that lightness alone tells the value
# and no kind of colour blindness hides it.
COLOURS = f"""
.saccade{{{LIGHT};color-scheme:light;color:var(--ink);background:var(--paper);
font:15px/1.45 system-ui,sans-serif;padding:20px;max-width:1180px;margin:0 auto}}
@media (prefers-color-scheme:dark){{.saccade{{{DARK};color-scheme:dark}}}}
[data-jp-theme-light=true] .saccade,.vscode-light .saccade{{{LIGHT};color-scheme:light}}
[data-jp-theme-light=false] .saccade,.vscode-dark .saccade{{{DARK};color-scheme:dark}}
"""

STYLE = """
.saccade *{box-sizing:border-box}
.saccade h2{font-size:19px;margin:0}
.saccade h3{font-size:12px;font-weight:600;margin:0 0 6px;color:var(--soft)}
.saccade p{margin:0}
.saccade .soft{color:var(--soft);font-size:13px}
.saccade i{font-style:normal;color:var(--soft);font-variant-numeric:tabular-nums;flex:none}
.saccade .tokens,.saccade li b{font-family:ui-monospace,Menlo,Consolas,monospace}
.saccade li b{font-weight:400;white-space:pre;overflow:hidden;text-overflow:ellipsis;min-width:0}
.saccade li small{color:var(--soft)}
.saccade .tokens{font-size:16px;line-height:1.9;margin:6px 0 12px;overflow-wrap:anywhere}
.saccade .tokens span.t{padding:2px 1px;border-bottom:1px solid var(--line)}
.saccade .tokens mark{padding:2px 4px;border-radius:4px;background:var(--here);
color:var(--here-ink)}
.saccade .next{display:flex;flex-wrap:wrap;gap:6px 16px;padding:0;margin:4px 0 20px;list-style:none}
.saccade .next li:first-child b{font-weight:700}
.saccade .grid{display:grid;gap:2px;overflow-x:auto;padding:3px;
grid-template-columns:2.2em repeat(var(--columns),minmax(10px,1fr))}
.saccade .grid span{font-size:11px;color:var(--soft);text-align:center;align-self:center;
font-variant-numeric:tabular-nums;overflow:hidden}
.saccade .cell{position:relative;height:26px;border-radius:3px;cursor:pointer;
background:color-mix(in oklab,var(--hi) calc(var(--v)*1%),var(--lo))}
.saccade .cell.weak{background-image:repeating-linear-gradient(135deg,transparent 0 4px,
var(--paper) 4px 6px)}
.saccade .cell input{position:absolute;inset:0;width:100%;height:100%;margin:0;opacity:0;
cursor:pointer}
.saccade .cell:hover{outline:2px solid var(--soft)}
.saccade .cell:has(:checked){outline:3px solid var(--drop);outline-offset:-1px;z-index:1}
.saccade .cell:has(:focus-visible){outline:3px solid var(--ink);outline-offset:1px;z-index:2}
.saccade .legend{display:flex;flex-wrap:wrap;align-items:center;gap:4px 10px;margin:8px 0 18px;
font-size:12px;color:var(--soft)}
.saccade .ramp{width:150px;height:10px;border-radius:3px;
background:linear-gradient(in oklab to right,var(--lo),var(--hi))}
.saccade .hatch{display:inline-block;width:20px;height:12px;border-radius:3px;vertical-align:-1px;
background:repeating-linear-gradient(135deg,var(--bar) 0 4px,var(--paper) 4px 6px)}
.saccade .below{display:grid;grid-template-columns:minmax(0,1fr) 300px;gap:24px}
.saccade .card{display:none;background:var(--panel);border:1px solid var(--line);
border-radius:10px;padding:18px}
.saccade .facts{display:flex;flex-wrap:wrap;gap:4px 22px;margin:6px 0 16px;font-size:14px}
.saccade .facts b{font-variant-numeric:tabular-nums}
.saccade .badge{border:1px solid var(--drop);color:var(--drop);border-radius:99px;padding:0 9px;
font-size:12px;font-weight:600}
.saccade .columns{display:grid;gap:18px 24px;
grid-template-columns:repeat(auto-fit,minmax(136px,1fr))}
.saccade .weak .columns{opacity:.62}
.saccade ol{list-style:none;margin:0;padding:0}
.saccade .words li{position:relative;display:flex;justify-content:space-between;gap:8px;
padding:2px 6px;margin-bottom:2px;font-size:13px;overflow:hidden;border-radius:3px}
.saccade .words li::before{content:"";position:absolute;inset:0 auto 0 0;width:calc(var(--v)*1%);
background:var(--bar);opacity:.75}
.saccade .words li>*{position:relative}
.saccade .adds b{color:var(--add);font-weight:600}
.saccade .drops b{color:var(--drop)}
.saccade .cards,.saccade .ranks{min-width:0}
.saccade .cards p.soft{margin:10px 2px}
.saccade .ranks label{display:flex;gap:10px;align-items:baseline;padding:5px 8px;cursor:pointer;
border-radius:6px;font-size:13px}
.saccade .ranks label:hover{background:var(--panel)}
.saccade .ranks span{min-width:2.6em;font-weight:700;font-variant-numeric:tabular-nums}
.saccade .ranks b{flex:1}
@media (max-width:820px){.saccade{padding:14px}.saccade .below{grid-template-columns:minmax(0,1fr)}
.saccade .cell{height:24px}.saccade .grid{gap:1px;grid-template-columns:1.6em
repeat(var(--columns),minmax(8px,1fr))}.saccade .card{padding:14px}
.saccade .grid span{overflow:visible;white-space:nowrap;min-width:0;width:0;justify-self:center}
.saccade .grid span:not(.fifth,.row){font-size:0}
.saccade .columns{grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:16px 14px}}
"""

# Radio buttons move along the row by themselves; up and down should stay in the column.
SCRIPT = """
document.getElementById("UID").addEventListener("keydown", function (event) {
  var step = {ArrowUp: -1, ArrowDown: 1}[event.key];
  if (!step || event.target.type !== "radio") return;
  var at = event.target.value.split("."), next = at[0] + "." + (+at[1] + step);
  var found = document.getElementById("UID-" + next);
  event.preventDefault();
  if (found) { found.checked = true; found.focus(); }
});
"""
