// Icons of Lucide. Each stands beside a name for those who do not see it.

import { createElement } from "preact";
import type { IconNode } from "lucide";

export function Icon({ of }: { of: IconNode }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      {of.map(([tag, attributes]) => createElement(tag, attributes as object))}
    </svg>
  );
}

interface ButtonProps {
  icon: IconNode;
  /** The name: read aloud, and shown as a tooltip. */
  name: string;
  onClick: (event: MouseEvent) => void;
  class?: string;
  disabled?: boolean;
  pressed?: boolean;
  expanded?: boolean;
  controls?: string;
}

export function IconButton({ icon, name, onClick, disabled, pressed, expanded, controls, ...rest }: ButtonProps) {
  return (
    <button
      type="button"
      class={`icon-button ${rest.class ?? ""}`}
      aria-label={name}
      title={name}
      onClick={onClick}
      disabled={disabled}
      aria-pressed={pressed}
      aria-expanded={expanded}
      aria-controls={controls}
    >
      <Icon of={icon} />
    </button>
  );
}
