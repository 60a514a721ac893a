;; Attack, with left.wat: they import from each other.
(module (import "left" "f" (func $f)) (func (export "f") (call $f)))
