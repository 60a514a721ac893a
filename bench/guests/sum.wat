;; The tightest loop there is: tested at its end.
(module (func (export "run") (param $steps i32) (result i32) (local $sum i32)
  (loop
    (local.set $sum (i32.xor (i32.mul (local.get $sum) (i32.const 31)) (local.get $steps)))
    (br_if 0 (local.tee $steps (i32.sub (local.get $steps) (i32.const 1)))))
  (local.get $sum)))
