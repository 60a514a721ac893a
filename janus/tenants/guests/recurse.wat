;; Attack: calls itself without end, and overflows its stack.
(module (func $f (export "_start") (call $f)))
