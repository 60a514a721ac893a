;; Attack: a bad access.
(module (memory 1) (func (export "_start") (i64.store (i32.const -8) (i64.const 1))))
