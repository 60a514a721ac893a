;; Attack: begins what left.wat and right.wat do not end.
(module (import "left" "f" (func $f)) (func (export "_start") (call $f)))
