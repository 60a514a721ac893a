;; A loop that calls by a table, as programs with function pointers do: 64 turns a step.
(module
  (type $op (func (param i32 i32) (result i32)))
  (table funcref (elem $add $mix $pick $add))
  (func $add (type $op) (i32.add (local.get 0) (local.get 1)))
  (func $mix (type $op) (i32.xor (i32.rotl (local.get 0) (i32.const 5)) (local.get 1)))
  (func $pick (type $op)
    (if (result i32) (i32.lt_u (local.get 0) (local.get 1)) (then (local.get 0)) (else (local.get 1))))
  (func (export "run") (param $steps i32) (result i32) (local $sum i32) (local $i i32)
    (loop
      (local.set $i (i32.const 64))
      (loop
        (local.set $sum
          (call_indirect (type $op) (local.get $sum) (local.get $i) (i32.and (local.get $i) (i32.const 3))))
        (br_if 0 (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))
      (br_if 0 (local.tee $steps (i32.sub (local.get $steps) (i32.const 1)))))
    (local.get $sum)))
