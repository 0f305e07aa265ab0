// A button that opens a menu. Arrow keys move in it, Escape closes it.

import { useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { IconNode } from "lucide";
import { Icon } from "./icons.js";

interface MenuProps {
  icon: IconNode;
  name: string;
  items: [name: string, act: () => void][];
}

export function Menu({ icon, name, items }: MenuProps) {
  const open = useSignal(false);
  const root = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  // Before the next key can arrive: a key pressed right after a click belongs to the menu.
  useLayoutEffect(() => {
    if (!open.value) return;
    root.current?.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    const outside = ({ target }: Event) => {
      if (!root.current?.contains(target as Node)) open.value = false;
    };
    addEventListener("pointerdown", outside);
    return () => removeEventListener("pointerdown", outside);
  }, [open.value]);
  const onKeyDown = (event: KeyboardEvent) => {
    const entries = [...root.current!.querySelectorAll<HTMLElement>("[role=menuitem]")];
    const at = entries.indexOf(document.activeElement as HTMLElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && open.value) entries[(at + step + entries.length) % entries.length]?.focus();
    else if (event.key === "Escape" && open.value) {
      open.value = false;
      button.current?.focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="menu" ref={root} onKeyDown={onKeyDown}>
      <button
        ref={button}
        type="button"
        class="icon-button"
        aria-label={name}
        title={name}
        aria-haspopup="menu"
        aria-expanded={open.value}
        onClick={() => (open.value = !open.value)}
      >
        <Icon of={icon} />
      </button>
      {open.value && (
        <div class="menu-items" role="menu" aria-label={name}>
          {items.map(([name, act]) => (
            <button
              type="button"
              role="menuitem"
              tabIndex={-1}
              onClick={() => {
                open.value = false;
                act();
              }}
            >
              {name}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}
