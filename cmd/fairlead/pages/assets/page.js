// Redraws what has changed. Without JavaScript the page is the same and reloads every ten seconds.
'use strict';

const base = new URL('.', document.currentScript.src);
const live = document.getElementById('live');
let busy = false;

// Only parts with data-live are replaced, and only if they differ: what the user types, has opened or reads stays.
async function redraw() {
  if (busy || document.hidden) return;
  busy = true;
  try {
    const response = await fetch(location.href, { cache: 'no-store' });
    if (!response.ok) throw new Error(response.status);
    const fresh = new DOMParser().parseFromString(await response.text(), 'text/html');
    const focused = document.activeElement?.getAttribute('href');
    for (const part of document.querySelectorAll('[data-live]')) {
      const next = fresh.getElementById(part.id);
      if (!next || next.innerHTML === part.dataset.drawn) continue;
      const drawn = next.innerHTML;
      for (const open of part.querySelectorAll('details[open]')) next.querySelector('#' + open.id)?.setAttribute('open', '');
      const scrolled = part.querySelector('[role=region]')?.scrollLeft;
      part.replaceWith(next);
      next.dataset.drawn = drawn;
      if (scrolled) next.querySelector('[role=region]').scrollLeft = scrolled;
    }
    document.title = fresh.title;
    if (focused && document.activeElement === document.body) {
      document.querySelector('main a[href="' + CSS.escape(focused) + '"]')?.focus({ preventScroll: true });
    }
  } finally {
    busy = false;
  }
}

const events = new EventSource(new URL('events', base));
let table = '';
const again = () => redraw().catch(() => { live.textContent = 'stale'; });
events.addEventListener('table', (event) => {
  live.textContent = 'live';
  if (table) again();
  table = event.data;
});
events.onerror = () => { live.textContent = 'not live'; };
setInterval(() => { if (table) again(); }, 10000); // ages and latencies change without the table
document.addEventListener('visibilitychange', () => { if (table) again(); });
