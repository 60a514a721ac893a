;; Attack: never ends.
(module (func (export "_start") (loop (br 0))))
