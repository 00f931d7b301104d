// Redraws the page whenever the table changes. Without it, the page is the same and reloads every ten seconds.
'use strict';

const base = new URL('.', document.currentScript.src);
const live = document.getElementById('live');

async function redraw() {
  const response = await fetch(location.href, { cache: 'no-store' });
  if (!response.ok) throw new Error(response.status);
  const fresh = new DOMParser().parseFromString(await response.text(), 'text/html');
  const box = document.activeElement;
  if (box && box.tagName === 'INPUT') return; // somebody is typing
  const at = box && box.getAttribute && box.getAttribute('href');
  document.getElementById('main').replaceWith(fresh.getElementById('main'));
  document.title = fresh.title;
  if (at) document.querySelector('main a[href="' + CSS.escape(at) + '"]')?.focus({ preventScroll: true });
}

const events = new EventSource(new URL('events', base));
let first = true;
events.addEventListener('table', (event) => {
  live.textContent = 'live, table ' + event.data;
  if (!first) redraw().catch(() => { live.textContent = 'stale'; });
  first = false;
});
events.onerror = () => { live.textContent = 'not live'; };
