/** The files of folio's demo model, for `load()` of folio-web. */
declare const demo: { name: string; files: Record<string, URL> };
export default demo;
