//! A plan as text, one line a step.
