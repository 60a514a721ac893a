;; Nested loops over memory: the primes below 256, once a step.
(module (memory 1)
  (func $sieve (result i32) (local $i i32) (local $j i32) (local $count i32)
    (memory.fill (i32.const 0) (i32.const 0) (i32.const 256))
    (local.set $i (i32.const 2))
    (loop $outer
      (if (i32.eqz (i32.load8_u (local.get $i)))
        (then
          (local.set $count (i32.add (local.get $count) (i32.const 1)))
          (local.set $j (i32.mul (local.get $i) (local.get $i)))
          (block $done (loop $inner
            (br_if $done (i32.ge_u (local.get $j) (i32.const 256)))
            (i32.store8 (local.get $j) (i32.const 1))
            (local.set $j (i32.add (local.get $j) (local.get $i)))
            (br $inner)))))
      (br_if $outer (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 256))))
    (local.get $count))
  (func (export "run") (param $steps i32) (result i32) (local $sum i32)
    (loop
      (local.set $sum (i32.add (local.get $sum) (call $sieve)))
      (br_if 0 (local.tee $steps (i32.sub (local.get $steps) (i32.const 1)))))
    (local.get $sum)))
