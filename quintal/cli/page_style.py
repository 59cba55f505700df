"""How the report's page looks, by day and by night, on a screen and on paper.

The tenants' colours are told apart by people who see red and green alike.
"""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5b6875; --paper: #f4f6f8; --card: #fff;
  --rule: #dfe4e9; --s0: #2f6fb5; --s1: #e08e1b; --s2: #2a9d7f; --s3: #b8527c; --s4: #7fb6e6;
  --s5: #8a6d3b; --s6: #6f5bb0; --others: #a3adb7; --busy: #1f6f5c; --calm: #5db39b;
  --unseen: #b4d9cd; --elsewhere: #b9c4d6; --gone: #e3b7a6; --free: #eaeef1; --flag: #a1430f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --soft: #9aa7b4; --paper: #13181e;
  --card: #1c232b; --rule: #313b46; --s0: #5b9bdf; --s4: #a9d1f2; --s5: #b59a66; --s6: #9a88d6;
  --others: #6c7883; --busy: #5fd0b0; --calm: #338a73; --unseen: #23584b; --elsewhere: #4a5870;
  --gone: #7d4a38; --free: #27303a; --flag: #f0a070; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 28px 40px; max-width: 1360px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { margin: 0; font-size: 28px; letter-spacing: -0.01em; }
h2 { margin: 34px 0 2px; font-size: 20px; }
h3 { margin: 0 0 8px; font-size: 15px; }
h3 small { color: var(--soft); font-weight: 400; margin-left: 6px; }
header p, section > p, footer { margin: 2px 0 12px; color: var(--soft); max-width: 95ch; }
.flag { color: var(--flag); }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin-top: 18px; }
.tiles div { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 10px 16px 9px; min-width: 128px; }
.tiles b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: 13px; }
.cards { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(500px, 1fr)); }
article { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 14px 16px 10px; max-width: 760px; break-inside: avoid; }
.nothing { color: var(--soft); font-style: italic; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 12.5px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.tick, .name { text-anchor: end; } .time, .unit { text-anchor: middle; }
svg .name, svg .value { fill: var(--ink); font-size: 13.5px; }
.grid { stroke: var(--rule); stroke-width: 1; }
.line { fill: none; stroke: var(--ink); stroke-width: 1.6; }
.s0 { fill: var(--s0); } .s1 { fill: var(--s1); } .s2 { fill: var(--s2); } .s3 { fill: var(--s3); }
.s4 { fill: var(--s4); } .s5 { fill: var(--s5); } .s6 { fill: var(--s6); }
.others { fill: var(--others); } .busy { fill: var(--busy); } .calm { fill: var(--calm); }
.unseen { fill: var(--unseen); } .elsewhere { fill: var(--elsewhere); } .gone { fill: var(--gone); }
.free { fill: var(--free); } .charged { fill: var(--s0); } .spent { fill: var(--s1); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 8px 0 4px; font-size: 13px;
  color: var(--soft); }
.legend span { display: inline-flex; align-items: center; gap: 6px; overflow-wrap: anywhere; }
.legend i { width: 11px; height: 11px; border-radius: 3px; flex: none; }
i.s0 { background: var(--s0); } i.s1 { background: var(--s1); } i.s2 { background: var(--s2); }
i.s3 { background: var(--s3); } i.s4 { background: var(--s4); } i.s5 { background: var(--s5); }
i.s6 { background: var(--s6); } i.others { background: var(--others); }
i.busy { background: var(--busy); } i.calm { background: var(--calm); }
i.unseen { background: var(--unseen); } i.elsewhere { background: var(--elsewhere); }
i.gone { background: var(--gone); } i.free { background: var(--free);
  outline: 1px solid var(--rule); } i.charged { background: var(--s0); }
i.spent { background: var(--s1); }
i.lined { height: 0; border-top: 2px solid var(--ink); border-radius: 0; }
details { margin-top: 6px; } summary { cursor: pointer; color: var(--soft); font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; margin-top: 6px; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 500; } .n { text-align: right;
  font-variant-numeric: tabular-nums; } code { font-size: 13px; }
footer { margin-top: 36px; border-top: 1px solid var(--rule); padding-top: 12px; }
@media (max-width: 560px) { .cards { grid-template-columns: 1fr; } body { padding: 16px; } }
@media print { body { background: none; } details > * { display: none; } }
"""
