;; Attack: asks for memory until there is none, touches all of it, and gives up.
(module (memory 1)
  (func (export "_start") (local $at i32)
    (loop
      (i32.store (local.get $at) (i32.const 1))
      (local.set $at (i32.add (local.get $at) (i32.const 65536)))
      (br_if 0 (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
    unreachable))
