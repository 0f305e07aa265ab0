// Caches the page's own files, so that it opens without a network. The engine caches models itself.

// build.mjs fills in both values.
const CACHE = "folio-page-VERSION_OF_THE_BUILD";
const FILES = ["./", ...FILES_OF_THE_PAGE];

addEventListener("install", (event) => {
  const fill = async () => {
    const cache = await caches.open(CACHE);
    await cache.addAll(FILES.map((file) => new Request(file, { cache: "reload" })));
    await skipWaiting();
  };
  event.waitUntil(fill());
});

addEventListener("activate", (event) => {
  const tidy = async () => {
    const old = (await caches.keys()).filter((name) => name.startsWith("folio-page-") && name !== CACHE);
    await Promise.all(old.map((name) => caches.delete(name)));
    await clients.claim();
  };
  event.waitUntil(tidy());
});

addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  const own = url.origin === location.origin && url.href.startsWith(registration.scope);
  const file = url.href.slice(registration.scope.length).split(/[?#]/)[0];
  if (!own || event.request.method !== "GET" || !FILES.includes(file || "./")) return;
  const answer = async () => {
    const cache = await caches.open(CACHE);
    return (await cache.match(file || "./", { ignoreSearch: true })) ?? (await fetch(event.request));
  };
  event.respondWith(answer());
});
