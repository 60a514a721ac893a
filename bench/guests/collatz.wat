;; Both arms of an `if`, in a loop: how many steps a number takes to 1, once a step.
(module
  (func $length (param $n i32) (result i32) (local $count i32)
    (loop
      (if (i32.and (local.get $n) (i32.const 1))
        (then (local.set $n (i32.add (i32.mul (local.get $n) (i32.const 3)) (i32.const 1))))
        (else (local.set $n (i32.shr_u (local.get $n) (i32.const 1)))))
      (local.set $count (i32.add (local.get $count) (i32.const 1)))
      (br_if 0 (i32.ne (local.get $n) (i32.const 1))))
    (local.get $count))
  (func (export "run") (param $steps i32) (result i32) (local $sum i32)
    (loop
      (local.set $sum (i32.add (local.get $sum)
        (call $length (i32.add (i32.and (local.get $steps) (i32.const 63)) (i32.const 2)))))
      (br_if 0 (local.tee $steps (i32.sub (local.get $steps) (i32.const 1)))))
    (local.get $sum)))
