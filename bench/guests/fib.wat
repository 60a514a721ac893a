;; Calls and little else: the 10th number of Fibonacci by definition, once a step.
(module
  (func $fib (param $n i32) (result i32)
    (if (result i32) (i32.lt_u (local.get $n) (i32.const 2))
      (then (local.get $n))
      (else (i32.add (call $fib (i32.sub (local.get $n) (i32.const 1)))
                     (call $fib (i32.sub (local.get $n) (i32.const 2)))))))
  (func (export "run") (param $steps i32) (result i32) (local $sum i32)
    (loop
      (local.set $sum (i32.add (local.get $sum) (call $fib (i32.const 10))))
      (br_if 0 (local.tee $steps (i32.sub (local.get $steps) (i32.const 1)))))
    (local.get $sum)))
