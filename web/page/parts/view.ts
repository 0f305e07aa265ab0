// The state of the page's own furniture: which panel is open, the theme, what the model's place says about it.

import { signal, type ReadonlySignal } from "@preact/signals";

export type PanelName = "settings" | "server";
export type Theme = "system" | "light" | "dark";

/** As in `style.css`. */
const NARROW = matchMedia("(max-width: 60rem)");
const THEME = "folio theme";

export class View {
  readonly panel = signal<PanelName | null>(null);
  /** Whether the window is too narrow for the list beside the conversation. */
  readonly narrow = signal(NARROW.matches);
  readonly sidebar = signal(!NARROW.matches);
  readonly theme = signal<Theme>((localStorage.getItem(THEME) as Theme | null) ?? "system");

  constructor(
    /** Whether the model answers. */
    readonly ready: ReadonlySignal<boolean>,
    /** Positions of the model's context, if known. */
    readonly context: ReadonlySignal<number | null>,
    /** What happens with what the user writes. */
    readonly promise: string,
  ) {
    NARROW.addEventListener("change", () => {
      this.narrow.value = NARROW.matches;
      this.sidebar.value = !NARROW.matches;
    });
    this.theme.subscribe((theme) => {
      document.documentElement.dataset.theme = theme;
      localStorage.setItem(THEME, theme);
    });
  }

  show(panel: PanelName): void {
    this.panel.value = panel;
  }

  toggle(panel: PanelName): void {
    this.panel.value = this.panel.value === panel ? null : panel;
  }
}
