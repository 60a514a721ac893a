;; A loop that is left from its middle.
(module (func (export "run") (param $steps i32) (result i32) (local $sum i32)
  (block (loop
    (br_if 1 (i32.eqz (local.get $steps)))
    (local.set $sum (i32.add (i32.rotl (local.get $sum) (i32.const 5)) (local.get $steps)))
    (local.set $steps (i32.sub (local.get $steps) (i32.const 1)))
    (br 0)))
  (local.get $sum)))
