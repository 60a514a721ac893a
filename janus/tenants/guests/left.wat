;; Attack, with right.wat: they import from each other.
(module (import "right" "f" (func $f)) (func (export "f") (call $f)))
