;; The world of household tasks that the native engine simulates. A game whose domain means the same as this one is
;; played natively; the names of actions and parameters are those that the grammars of such games refer to.
(define (domain alfred)
  (:requirements :adl :typing)
  (:types agent location receptacle object rtype otype)
  (:predicates
    (atLocation ?a - agent ?l - location)
    (receptacleAtLocation ?r - receptacle ?l - location)
    (objectAtLocation ?o - object ?l - location)
    (receptacleType ?r - receptacle ?t - rtype)
    (objectType ?o - object ?t - otype)
    (canContain ?rt - rtype ?ot - otype)
    (openable ?r - receptacle)
    (opened ?r - receptacle)
    (inReceptacle ?o - object ?r - receptacle)
    (isReceptacleObject ?o - object)
    (inReceptacleObject ?inner - object ?outer - object)
    (holds ?a - agent ?o - object)
    (holdsAny ?a - agent)
    (pickupable ?o - object)
    (cleanable ?o - object)
    (heatable ?o - object)
    (coolable ?o - object)
    (toggleable ?o - object)
    (sliceable ?o - object)
    (isClean ?o - object)
    (isHot ?o - object)
    (isCool ?o - object)
    (isOn ?o - object)
    (isToggled ?o - object)
    (isSliced ?o - object)
    (checked ?x - object))

  ;; What only looks: the effect marks something as seen, which nothing depends on.
  (:action look
    :parameters (?a - agent ?l - location)
    :precondition (atLocation ?a ?l)
    :effect (checked ?l))
  (:action inventory
    :parameters (?a - agent)
    :precondition ()
    :effect (checked ?a))
  (:action help
    :parameters (?a - agent)
    :precondition ()
    :effect (checked ?a))
  (:action examineReceptacle
    :parameters (?a - agent ?r - receptacle)
    :precondition (exists (?l - location) (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l)))
    :effect (checked ?r))
  (:action examineObject ; only what is in the hand
    :parameters (?a - agent ?o - object)
    :precondition (holds ?a ?o)
    :effect (checked ?o))

  (:action GotoLocation
    :parameters (?a - agent ?lStart - location ?lEnd - location ?r - receptacle)
    :precondition (and (atLocation ?a ?lStart) (receptacleAtLocation ?r ?lEnd))
    :effect (and (not (atLocation ?a ?lStart)) (atLocation ?a ?lEnd)))

  (:action OpenObject
    :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (openable ?r) (not (opened ?r)))
    :effect (and (opened ?r) (checked ?r)))
  (:action CloseObject
    :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (openable ?r) (opened ?r))
    :effect (not (opened ?r)))

  (:action PickupObject
    :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r) (pickupable ?o)
                       (not (holdsAny ?a)) (or (opened ?r) (not (openable ?r))))
    :effect (and (holds ?a ?o) (holdsAny ?a) (not (inReceptacle ?o ?r)) (not (objectAtLocation ?o ?l))))
  (:action PutObject
    :parameters (?a - agent ?l - location ?o - object ?r - receptacle ?ot - otype ?rt - rtype)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (holds ?a ?o)
                       (objectType ?o ?ot) (receptacleType ?r ?rt) (canContain ?rt ?ot)
                       (or (opened ?r) (not (openable ?r))))
    :effect (and (inReceptacle ?o ?r) (objectAtLocation ?o ?l) (not (holds ?a ?o)) (not (holdsAny ?a))))

  (:action CleanObject
    :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (holds ?a ?o) (cleanable ?o)
                       (or (receptacleType ?r SinkType) (receptacleType ?r SinkBasinType)))
    :effect (isClean ?o))
  (:action HeatObject
    :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (holds ?a ?o) (heatable ?o)
                       (receptacleType ?r MicrowaveType))
    :effect (and (isHot ?o) (not (isCool ?o))))
  (:action CoolObject
    :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (holds ?a ?o) (coolable ?o)
                       (receptacleType ?r FridgeType))
    :effect (and (isCool ?o) (not (isHot ?o))))

  (:action ToggleObject
    :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r) (toggleable ?o))
    :effect (and (isToggled ?o) (when (isOn ?o) (not (isOn ?o))) (when (not (isOn ?o)) (isOn ?o))))
  (:action SliceObject ; what lies at the agent's place, with a knife in the hand
    :parameters (?a - agent ?l - location ?co - object ?ko - object)
    :precondition (and (atLocation ?a ?l) (objectAtLocation ?co ?l) (sliceable ?co) (holds ?a ?ko)
                       (or (objectType ?ko KnifeType) (objectType ?ko ButterKnifeType)))
    :effect (isSliced ?co)))
