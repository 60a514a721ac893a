;; A loop that calls a small function: 64 turns a step.
(module
  (func $mix (param $x i32) (param $y i32) (result i32)
    (i32.xor (i32.rotl (local.get $x) (i32.const 5)) (i32.mul (local.get $y) (i32.const 40503))))
  (func (export "run") (param $steps i32) (result i32) (local $sum i32) (local $i i32)
    (loop
      (local.set $i (i32.const 64))
      (loop
        (local.set $sum (call $mix (local.get $sum) (local.get $i)))
        (br_if 0 (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))
      (br_if 0 (local.tee $steps (i32.sub (local.get $steps) (i32.const 1)))))
    (local.get $sum)))
